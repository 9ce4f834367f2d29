//! A simulated client: it sends in pieces, reads when it likes, leaves when it likes, and judges what it gets.

use std::collections::VecDeque;

use super::asks::{Answer, Ask, Excuses, Times};
use super::network::{End, Place, SimNetwork};
use super::random::Random;

/// How a client leaves before it has all answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Departure {
    FinishSending,
    Leave,
    Reset,
}

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Style {
    /// Bytes sent at once at most.
    pub send_max: usize,
    pub receive_max: usize,
    /// Requests that may be on their way at once.
    pub depth: usize,
    /// After so many acts of its own.
    pub leaves: Option<(usize, Departure)>,
    /// And only when a whole request is on its way.
    pub leaves_waiting: bool,
    pub never_reads: bool,
    /// At a byte of one of its requests it stops for a time.
    pub pause: Option<(usize, usize, u64)>,
    pub connects_at_ns: u64,
    /// How it ends when all is answered.
    pub last: Departure,
}

/// Times from which on the server is in the right to lose patience.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub request_ns: u64,
    pub idle_ns: u64,
    pub write_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Unborn,
    Open,
    /// It sends no more and waits for the end.
    Ending,
    Gone,
}

/// What an act came to, for the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Did {
    Connected,
    Sent(usize),
    /// Bytes, and the answers that became complete by them.
    Received(usize, usize),
    SawEnd(End),
    Left(Departure),
}

/// A request on its way.
#[derive(Debug)]
struct Open {
    ask: Ask,
    /// Bytes sent of it, when that began, and when last some were.
    sent: usize,
    since_ns: u64,
    last_ns: u64,
    /// Where it ends in all that the client sends.
    end: u64,
}

impl Open {
    fn is_whole(&self) -> bool {
        self.sent == self.ask.bytes.len()
    }
}

#[derive(Debug)]
pub struct Client {
    pub index: usize,
    style: Style,
    patience: Patience,
    stage: Stage,
    /// Not begun to be sent.
    asks: VecDeque<Ask>,
    /// On their way, the first ones first.
    open: VecDeque<Open>,
    /// Bytes of all requests begun.
    begun_bytes: u64,
    acts: usize,
    asked: usize,
    paused_until_ns: u64,
    /// Leave to send the body of the last of `open` has come.
    may_go_on: bool,
    received: Vec<u8>,
    /// Bytes received before those.
    taken_bytes: u64,
    /// The server has said that it will close.
    told_close: bool,
    /// It has done something for which the server may let it down.
    pub is_rude: bool,
    last_sent_ns: u64,
    unread_since_ns: Option<u64>,
    /// Since when it has had a part of an answer.
    taking_since_ns: Option<u64>,
    /// It was being served when the server was told to stop.
    pub owed_at_stop: bool,
    /// Of each answer: its status, and a hash of what does not vary with the real clock.
    pub answers: Vec<(u16, u64)>,
    /// The ids under which it was answered.
    pub ids: Vec<String>,
}

impl Client {
    pub fn new(index: usize, style: Style, patience: Patience, asks: Vec<Ask>) -> Client {
        Client {
            index,
            is_rude: style.never_reads || style.leaves.is_some(),
            style,
            patience,
            stage: Stage::Unborn,
            asks: asks.into(),
            open: VecDeque::new(),
            begun_bytes: 0,
            acts: 0,
            asked: 0,
            paused_until_ns: 0,
            may_go_on: false,
            received: Vec::new(),
            taken_bytes: 0,
            told_close: false,
            last_sent_ns: 0,
            unread_since_ns: None,
            taking_since_ns: None,
            owed_at_stop: false,
            answers: Vec::new(),
            ids: Vec::new(),
        }
    }

    pub fn is_gone(&self) -> bool {
        self.stage == Stage::Gone
    }

    pub fn is_waiting(&self) -> bool {
        let whole = self.open.front().is_some_and(Open::is_whole);
        self.stage == Stage::Open && whole && !self.is_rude
    }

    /// When it will act by itself, if it waits for a time.
    pub fn wakes_at_ns(&self, now_ns: u64) -> Option<u64> {
        match self.stage {
            Stage::Unborn => Some(self.style.connects_at_ns),
            Stage::Open => Some(self.paused_until_ns),
            Stage::Ending | Stage::Gone => None,
        }
        .filter(|at_ns| *at_ns > now_ns)
    }

    fn wants_to_send(&self, now_ns: u64) -> bool {
        if self.told_close || now_ns < self.paused_until_ns {
            return false;
        }
        match self.open.back() {
            Some(open) if !open.is_whole() => open.ask.hold_at != Some(open.sent) || self.may_go_on,
            Some(_) | None => !self.asks.is_empty() && self.open.len() < self.style.depth,
        }
    }

    fn has_all(&self) -> bool {
        self.asks.is_empty() && self.open.is_empty() || self.told_close
    }

    fn must_leave(&self, network: &SimNetwork) -> Option<Departure> {
        let is_cut_off = self.style.never_reads && network.wires[self.index].place == Place::Closed;
        let is_waiting = self.open.front().is_some_and(Open::is_whole);
        let may = is_waiting || !self.style.leaves_waiting;
        let due = self.style.leaves.filter(|(acts, _)| may && self.acts >= *acts).map(|(_, leave)| leave);
        due.or(is_cut_off.then_some(Departure::Leave))
    }

    pub fn can_act(&self, network: &SimNetwork, now_ns: u64) -> bool {
        let wire = &network.wires[self.index];
        match self.stage {
            Stage::Unborn => now_ns >= self.style.connects_at_ns,
            Stage::Open => {
                let receives = wire.is_receivable() && !self.style.never_reads;
                let sends = self.wants_to_send(now_ns) && wire.room_to_send() > 0;
                receives || sends || self.must_leave(network).is_some() || self.has_all()
            }
            Stage::Ending => wire.is_receivable(),
            Stage::Gone => false,
        }
    }

    /// Does one of the things that it can do.
    ///
    /// # Errors
    /// What it was sent is not what it may be sent.
    pub fn act(
        &mut self,
        network: &mut SimNetwork,
        random: &mut Random,
        now_ns: u64,
        excuses: &Excuses,
    ) -> Result<Did, String> {
        self.acts += 1;
        if self.stage == Stage::Unborn {
            self.stage = Stage::Open;
            self.last_sent_ns = now_ns;
            network.connect(self.index);
            return Ok(Did::Connected);
        }
        if self.stage == Stage::Open
            && let Some(leave) = self.must_leave(network)
        {
            return Ok(self.leave(network, leave));
        }
        let wire = &network.wires[self.index];
        let receives = wire.is_receivable() && !self.style.never_reads;
        let sends = self.stage == Stage::Open && self.wants_to_send(now_ns) && wire.room_to_send() > 0;
        if sends && (!receives || random.one_in(2)) {
            return Ok(self.send(network, random, now_ns));
        }
        if receives {
            return self.receive(network, random, now_ns, excuses);
        }
        // All is answered.
        let leave = if self.told_close { Departure::FinishSending } else { self.style.last };
        Ok(self.leave(network, leave))
    }

    fn leave(&mut self, network: &mut SimNetwork, leave: Departure) -> Did {
        let silent = !self.open.is_empty() || !self.asks.is_empty();
        self.is_rude |= silent && !self.told_close;
        match leave {
            Departure::FinishSending => network.finish_sending(self.index),
            Departure::Leave => network.leave(self.index),
            Departure::Reset => network.reset(self.index),
        }
        let reads = leave == Departure::FinishSending && !self.style.never_reads;
        self.stage = if reads { Stage::Ending } else { Stage::Gone };
        Did::Left(leave)
    }

    fn send(&mut self, network: &mut SimNetwork, random: &mut Random, now_ns: u64) -> Did {
        if self.open.back().is_none_or(Open::is_whole) {
            let ask = self.asks.pop_front().expect("it wants to send");
            // The server may have closed for idleness while this is on its way.
            self.is_rude |= now_ns - self.last_sent_ns >= self.patience.idle_ns;
            self.begun_bytes += ask.bytes.len() as u64;
            self.open.push_back(Open { ask, sent: 0, since_ns: now_ns, last_ns: now_ns, end: self.begun_bytes });
            self.asked += 1;
            self.may_go_on = false;
        }
        let asked = self.asked;
        let Open { ask, sent, since_ns, last_ns, .. } = self.open.back_mut().expect("pushed above if it was empty");
        let mut end = (*sent + random.between(1, self.style.send_max)).min(ask.bytes.len());
        if let Some(hold_at) = ask.hold_at.filter(|hold_at| *sent < *hold_at) {
            end = end.min(hold_at);
        }
        let count = network.send(self.index, &ask.bytes[*sent..end]);
        *sent += count;
        *last_ns = now_ns;
        self.last_sent_ns = now_ns;
        self.is_rude |= now_ns - *since_ns >= self.patience.request_ns;
        if let Some((ask, byte, pause_ns)) = self.style.pause
            && ask + 1 == asked
            && *sent >= byte
        {
            self.style.pause = None;
            self.paused_until_ns = now_ns + pause_ns;
            self.is_rude |= pause_ns >= self.patience.request_ns;
        }
        Did::Sent(count)
    }

    fn receive(
        &mut self,
        network: &mut SimNetwork,
        random: &mut Random,
        now_ns: u64,
        excuses: &Excuses,
    ) -> Result<Did, String> {
        let since_ns = self.unread_since_ns.take().unwrap_or(now_ns);
        self.is_rude |= now_ns - since_ns >= self.patience.write_ns;
        // Or took its answer so slowly that the server's patience was over.
        self.is_rude |= network.behind_ns(self.index) >= self.patience.write_ns;
        let (bytes, end) = network.receive(self.index, random.between(1, self.style.receive_max));
        if network.wires[self.index].has_unread_by_client() {
            self.unread_since_ns = Some(now_ns);
        }
        self.received.extend_from_slice(&bytes);
        let before = self.answers.len();
        while self.take_answer(network, excuses)? {}
        // What waits for it has its time to be taken, or 64 KiB of it: more than a byte now and then.
        match self.received.is_empty() && !network.wires[self.index].has_unread_by_client() {
            true => self.taking_since_ns = None,
            false => {
                let since_ns = *self.taking_since_ns.get_or_insert(now_ns);
                self.is_rude |= now_ns - since_ns >= self.patience.write_ns;
            }
        }
        if let Some(end) = end.filter(|_| bytes.is_empty()) {
            self.stage = Stage::Gone;
            return Ok(Did::SawEnd(end));
        }
        Ok(Did::Received(bytes.len(), self.answers.len() - before))
    }

    /// Takes one complete answer out of what has been received.
    fn take_answer(&mut self, network: &mut SimNetwork, excuses: &Excuses) -> Result<bool, String> {
        let Some(end) = self.received.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(false) };
        let end = end + 4;
        let head = String::from_utf8(self.received[..end].to_vec()).map_err(|_| "a head that is no text")?;
        let status = head.get(9..12).and_then(|digits| digits.parse().ok()).ok_or(format!("no status: {head:?}"))?;
        let mut answer = Answer { status, head, body: Vec::new() };
        if status == 100 {
            self.received.drain(..end);
            self.taken_bytes += end as u64;
            // Requests are looked at one after another: it is about the first that is not answered.
            let asked = self.open.front().is_some_and(|open| open.ask.expects_continue);
            self.may_go_on = self.open.len() == 1;
            return if asked { Ok(true) } else { Err("100 Continue for nobody".into()) };
        }
        let length = answer.header("content-length").and_then(|length| length.parse().ok());
        let length: usize = length.ok_or("an answer without a length")?;
        // Where not even the method had come, a body follows, which nobody takes: the connection ends there.
        let is_head = self.open.front().is_some_and(|open| open.ask.is_head);
        let body_end = if is_head { end } else { end + length };
        if self.received.len() < body_end {
            return Ok(false);
        }
        answer.body = self.received[end..body_end].to_vec();
        self.received.drain(..body_end);
        let first_byte = self.taken_bytes;
        self.taken_bytes += body_end as u64;
        self.take(answer, first_byte, network, excuses).map(|()| true)
    }

    fn take(
        &mut self,
        answer: Answer,
        first_byte: u64,
        network: &mut SimNetwork,
        excuses: &Excuses,
    ) -> Result<(), String> {
        if self.told_close {
            return Err(format!("an answer after the last one: {}", answer.status));
        }
        self.told_close = answer.closes();
        let Some(open) = self.open.pop_front() else {
            return Err(format!("an answer that nobody asked for: {}", answer.status));
        };
        let times = self.times(&open, first_byte, network);
        let is_whole = open.is_whole();
        let ask = open.ask;
        let mut excuses = excuses.clone();
        if self.is_rude {
            excuses.words.insert(super::asks::TOO_SLOW);
        }
        let verdict = ask.judge(&answer, is_whole, &excuses).and_then(|()| ask.judge_times(answer.status, &times));
        verdict.map_err(|words| format!("request {}: {words}", ask.id))?;
        self.ids.push(answer.header("x-request-id").unwrap_or_default().to_owned());
        self.owed_at_stop = false;
        self.answers.push((answer.status, super::hash_of(&(answer.body.len(), timeless(&answer)))));
        Ok(())
    }

    fn times(&self, open: &Open, first_byte: u64, network: &mut SimNetwork) -> Times {
        let written = network.written(self.index, first_byte);
        // With others before it on the connection, or an interim answer, it is looked at later than it comes.
        let is_alone = self.style.depth == 1 && !open.ask.expects_continue && open.is_whole();
        let taken_ns = if is_alone { network.read_ns(self.index, open.end - 1) } else { None };
        Times {
            sent_ns: open.last_ns,
            taken_ns,
            written_ns: written.at_ns,
            turn_before_ns: (!written.delayed).then_some(written.turn_before_ns),
        }
    }

    /// Reads all that the server has sent it before its end, and says what it has got not even the beginning of an answer to.
    ///
    /// # Errors
    /// What it was sent is not what it may be sent.
    pub fn hear_out(
        &mut self,
        network: &mut SimNetwork,
        random: &mut Random,
        now_ns: u64,
        excuses: &Excuses,
    ) -> Result<Option<&str>, String> {
        let is_there = |stage| matches!(stage, Stage::Open | Stage::Ending);
        while is_there(self.stage) && !self.style.never_reads && network.wires[self.index].is_receivable() {
            self.receive(network, random, now_ns, excuses)?;
        }
        Ok(self.unanswered().filter(|_| self.received.is_empty()))
    }

    /// What it has not been answered although it may insist on it, once its connection is over.
    pub fn unanswered(&self) -> Option<&str> {
        let is_owed = !self.is_rude && !self.told_close;
        self.open.front().filter(|_| is_owed).map(|open| open.ask.id.as_str())
    }

    /// It has a whole request at the server, which has read all that it sent.
    pub fn is_being_served(&self, network: &SimNetwork) -> bool {
        let wire = &network.wires[self.index];
        let accepted = matches!(wire.place, Place::Accepted(_));
        let Some(open) = self.open.front().filter(|_| self.open.len() == 1) else { return false };
        accepted && !self.is_rude && !wire.has_unread_by_server() && open.is_whole() && !self.told_close
    }
}

/// The body, unless it tells the time of day.
fn timeless(answer: &Answer) -> &[u8] {
    let text = &answer.body;
    let tells_time = text.windows(10).any(|window| window == b"\"created\":");
    if tells_time { &[] } else { text }
}
