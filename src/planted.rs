//! Bugs on purpose, to prove that the simulation finds such bugs: each is a switch at the spot where it could have been made.
//!
//! Without the feature `planted-bugs` every switch is the constant `false` and compiles to nothing. With it a thread may turn
//! one on for itself alone.

/// A bug and where it sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A thread goes to sleep without looking once more ([`crate::ring::Doorbell::may_sleep`]).
    SleepsWithoutLooking,
    /// A worker that refuses a request does not ring.
    RefusesInSilence,
    /// A device that drops the pieces of cancelled requests does not ring.
    DropsInSilence,
    /// An answer is queued twice.
    AnswersTwice,
    /// The first two vectors of a batch change places.
    SwapsNeighbours,
    /// A piece that comes home belongs to whoever has its slot now.
    TrustsOldPieces,
    /// An empty piece that comes to a worker too late is dropped.
    LosesPieces,
    /// A cancelled request's tokens stay in the queue's account.
    KeepsTokens,
    /// After a read that left something behind the connection waits for an edge.
    ForgetsTheRest,
    /// The deadline of a request that has ended stays, for whoever has its slot next.
    KeepsTimers,
    /// A request's time begins with the millisecond in which it came.
    GivesUpEarly,
    /// A device keeps no hold of what it drops of requests that have ended: the pieces never come home.
    LosesDropped,
    /// A device's thread sleeps without having asked to be rung.
    SleepsUnarmed,
    /// A key that begins as a right one does is taken for it.
    TakesPrefixes,
    /// A client that leaves leaves no line in the access log.
    LosesLines,
    /// Whoever is not finished when the time for draining is up is cut off.
    LeavesInSilence,
    /// Bytes that are refused are answered as nobody's.
    ForgetsWhoAsked,
}

impl Bug {
    pub const ALL: [Bug; 17] = [
        Bug::SleepsWithoutLooking,
        Bug::RefusesInSilence,
        Bug::DropsInSilence,
        Bug::AnswersTwice,
        Bug::SwapsNeighbours,
        Bug::TrustsOldPieces,
        Bug::LosesPieces,
        Bug::KeepsTokens,
        Bug::ForgetsTheRest,
        Bug::KeepsTimers,
        Bug::GivesUpEarly,
        Bug::LosesDropped,
        Bug::SleepsUnarmed,
        Bug::TakesPrefixes,
        Bug::LosesLines,
        Bug::LeavesInSilence,
        Bug::ForgetsWhoAsked,
    ];
}

#[cfg(feature = "planted-bugs")]
thread_local!(static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) });

/// Gives the calling thread a bug, or none.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether the calling thread has this bug.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn is(_: Bug) -> bool {
    false
}
