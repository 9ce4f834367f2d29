//! What must hold of the reactor between two turns, said in code: for tests that look after every step.
//!
//! It costs time in proportion to all slots, so the server itself never asks.

use super::connections::Closing;
use super::{ConnectionId, Network, Reactor};
use crate::job::{Census, Errand};

/// How much there is of what the reactor counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub connections: usize,
    pub jobs: usize,
    /// Jobs that wait for a buffer for their answer.
    pub starved: usize,
    /// Jobs whose answer a worker encodes.
    pub encoding: usize,
    pub queue_tokens: u64,
    pub buffers_out: usize,
    /// Requests of which there is no line in the access log.
    pub lines_dropped: u64,
    /// When the next job's time is up.
    pub gives_up_at_ns: Option<u64>,
}

impl<N: Network> Reactor<N> {
    pub fn counts(&self) -> Counts {
        let gauges = self.gauges();
        Counts {
            connections: gauges.connections,
            jobs: gauges.jobs,
            starved: self.starved.iter().filter(|(key, _)| self.parts.generations.is_live(*key)).count(),
            encoding: self.jobs.iter().filter(|job| job.out == Some(Errand::Encode)).count(),
            queue_tokens: gauges.queue_tokens,
            buffers_out: gauges.buffers_out,
            lines_dropped: gauges.access_lines_dropped,
            gives_up_at_ns: self.timeouts.next_ns(),
        }
    }

    /// What is here and on its way here.
    pub fn census(&mut self) -> Census {
        let mut census = Census { pieces: self.parts.pieces.len(), ..Census::default() };
        for worker in &mut self.parts.workers {
            worker.receiver.each(|part| census.see_to_reactor(part));
        }
        for device in &mut self.parts.devices {
            device.receiver.each(|part| census.see_to_reactor(part));
        }
        self.parts.bodies.iter().for_each(|body| census.see_body(body));
        for job in &self.jobs {
            job.body.iter().for_each(|body| census.see_body(body));
            census.see_buffer(&job.values);
        }
        for connection in &self.connections {
            census.see_buffer(&connection.input);
            census.see_buffer(&connection.output);
        }
        census
    }

    /// # Panics
    /// When an invariant is broken.
    pub fn check_invariants(&self) {
        self.check_jobs();
        self.check_connections();
        let unlent = marked("jobs without a piece", self.jobs.len(), self.unlent.iter().copied());
        let ended = unlent.iter().zip(&self.jobs).find(|(waits, job)| **waits && job.asked.is_none());
        assert!(ended.is_none(), "an ended job waits for a piece");
        let live = self.starved.iter().filter(|(key, _)| self.parts.generations.is_live(*key));
        marked("starved jobs", self.jobs.len(), live.map(|(key, _)| key.slot));
    }

    fn check_jobs(&self) {
        let free = marked("free jobs", self.jobs.len(), self.jobs_free.iter().copied());
        let tokens: u64 = self.jobs.iter().map(|job| job.queue_tokens).sum();
        assert_eq!(self.queue_tokens, tokens, "the queue's tokens are those of its jobs");
        for (slot, job) in self.jobs.iter().enumerate() {
            assert_eq!(job.asked.is_none(), free[slot], "job {slot} is free or asked for");
            if job.asked.is_none() {
                continue;
            }
            assert!(job.body.is_none() || job.out.is_none(), "the body of job {slot} is at home and away");
            let ConnectionId { slot: place, generation } = job.connection;
            let connection = &self.connections[place as usize];
            let key = self.parts.generations.key(slot as u32);
            assert!(connection.open && connection.generation == generation, "job {slot} has lost its connection");
            assert_eq!(connection.job, Some(key), "connection {place} waits for job {slot}");
        }
    }

    fn check_connections(&self) {
        let count = self.connections.len();
        let free = marked("free connections", count, self.connections_free.iter().copied());
        let again = marked("connections to go on with", count, self.again.iter().copied());
        marked("connections to write", count, self.dirty.iter().copied());
        for (slot, connection) in (0..).zip(&self.connections) {
            assert_eq!(connection.open, !free[slot as usize], "connection {slot} is open or free");
            assert_eq!(connection.listed_again, again[slot as usize], "connection {slot} knows whether it is listed");
            if !connection.open {
                let held = connection.input.capacity() + connection.output.capacity();
                assert!(connection.job.is_none() && held == 0, "connection {slot} is closed and holds something");
                continue;
            }
            if let Some(job) = connection.job {
                assert!(self.parts.generations.is_live(job), "connection {slot} waits for a job that has ended");
            }
            let deadline = self.deadlines.kind(slot);
            assert!(
                connection.job.is_some() || deadline.is_some() || connection.listed_again,
                "connection {slot} waits without a deadline"
            );
            let reads = match connection.closing {
                Closing::No => connection.job.is_none() && !connection.has_output(),
                Closing::Lingering { .. } => true,
                Closing::AfterOutput => false,
            };
            assert!(
                !(reads && connection.readable) || connection.listed_again,
                "connection {slot} has something to read and nobody looks at it again"
            );
        }
    }
}

/// By slot, whether it is listed; each at most once.
fn marked(what: &str, count: usize, listed: impl Iterator<Item = u32>) -> Vec<bool> {
    let mut marks = vec![false; count];
    for slot in listed {
        assert!(!std::mem::replace(&mut marks[slot as usize], true), "{what}: {slot} is listed twice");
    }
    marks
}
