//! What a GPU counts, beside what every device does: written by the device thread, read by `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::Bucket;

#[derive(Debug, Default)]
pub struct GpuCounters {
    /// One for each bucket of each model. The lock is taken when a model is loaded and when `/metrics` is asked; the device
    /// thread holds what it counts in.
    slots: Mutex<Vec<Arc<SlotCounters>>>,
    pub upload_ns: AtomicU64,
    pub compute_ns: AtomicU64,
    pub download_ns: AtomicU64,
    /// Buckets, on some lane, that the library refused to capture.
    pub capture_failures: AtomicU64,
    pub lane_rebuilds: AtomicU64,
    /// Written by whoever watches the GPU; total 0 until it has looked.
    pub memory_used_bytes: AtomicU64,
    pub memory_total_bytes: AtomicU64,
    pub utilization_percent: AtomicU64,
}

/// Runs of one bucket of one model.
#[derive(Debug)]
pub struct SlotCounters {
    pub model: String,
    pub bucket: Bucket,
    /// Replayed.
    pub graph_hits: AtomicU64,
    /// Run without a graph.
    pub graph_misses: AtomicU64,
}

impl GpuCounters {
    /// Counters for a bucket, from now on shown.
    pub fn slot(&self, model: &str, bucket: Bucket) -> Arc<SlotCounters> {
        let (graph_hits, graph_misses) = (AtomicU64::new(0), AtomicU64::new(0));
        let slot = Arc::new(SlotCounters { model: model.to_owned(), bucket, graph_hits, graph_misses });
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&slot));
        slot
    }

    pub fn each_slot(&self, look: &mut dyn FnMut(&SlotCounters)) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|slot| look(slot));
    }

    #[cfg(test)]
    pub fn slots(&self) -> Vec<Arc<SlotCounters>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn count_times(&self, upload_ns: u64, compute_ns: u64, download_ns: u64) {
        self.upload_ns.fetch_add(upload_ns, Ordering::Relaxed);
        self.compute_ns.fetch_add(compute_ns, Ordering::Relaxed);
        self.download_ns.fetch_add(download_ns, Ordering::Relaxed);
    }
}

impl SlotCounters {
    pub fn count(&self, is_hit: bool) {
        let counter = if is_hit { &self.graph_hits } else { &self.graph_misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
