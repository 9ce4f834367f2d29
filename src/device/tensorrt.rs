//! A safe layer over TensorRT and TensorRT-RTX: libraries found, engines loaded, contexts run, engines built.
//!
//! Owned here: every call into the bindings and the lifetime of every object of the library. Above this module nobody names
//! the bindings' crate. Streams and device memory come from the caller as addresses; nothing is allocated on a device
//! here but what the library takes for an engine's weights.
//!
//! Invariants: no null pointer of the library's goes further than the call that returned it, it becomes an error with the
//! library's own last words; objects die in the library's order (context, engine, runtime) and the library itself is
//! never closed; no panic crosses into it.

mod builder;
mod context;
mod library;
mod logger;
mod machine;
mod runtime;

pub use builder::{Build, Builder, Built, Network, Plan, Progress, check_request};
pub use context::{Context, KernelCache};
pub use library::{LIBRARIES, Library};
pub use logger::Severity;
pub use machine::{Gpu, gpu};
pub use runtime::{Engine, Runtime};

use crate::model::engine::ElementType;

/// Which of the two libraries this binary was built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    Full,
    Rtx,
}

impl Flavour {
    /// The one that this binary was built for.
    pub const fn built() -> Flavour {
        if cfg!(feature = "tensorrt-rtx") { Flavour::Rtx } else { Flavour::Full }
    }

    pub fn name(self) -> &'static str {
        match self {
            Flavour::Full => "TensorRT",
            Flavour::Rtx => "TensorRT-RTX",
        }
    }
}

/// An object that the library handed out; deleted as the library wants it when dropped. Never null.
struct Owned<T: cxx::memory::UniquePtrTarget>(cxx::UniquePtr<T>);

/// No object lies in the first page. The lean runtime 11.4 answers 0x228 where it means null: the offset of a base class,
/// added to it.
const FIRST_OBJECT: usize = 4096;

impl<T: cxx::memory::UniquePtrTarget> Owned<T> {
    /// `None` for a null pointer, and for what a library makes of one.
    ///
    /// # Safety
    ///
    /// The object must be the caller's to delete, and nobody else's.
    #[allow(unsafe_code)]
    unsafe fn new(pointer: *mut T) -> Option<Owned<T>> {
        if pointer.addr() < FIRST_OBJECT {
            return None;
        }
        // SAFETY: not null, and the caller owns it.
        Some(Owned(unsafe { cxx::UniquePtr::from_raw(pointer) }))
    }

    fn get(&self) -> &T {
        self.0.as_ref().expect("never null")
    }

    fn pin(&mut self) -> std::pin::Pin<&mut T> {
        self.0.pin_mut()
    }

    fn pointer(&self) -> *mut T {
        self.0.as_mut_ptr()
    }
}

// SAFETY: the library's objects are bound to no thread; its documentation asks only that calls on one object do not overlap,
// which `&mut`, or a lock around the object, guarantees wherever this type is used.
#[allow(unsafe_code)]
unsafe impl<T: cxx::memory::UniquePtrTarget> Send for Owned<T> {}

/// What the library's number for an element type means.
fn element(kind: tensorrt_sys::DataType) -> ElementType {
    use tensorrt_sys::DataType;
    match kind {
        DataType::kFLOAT => ElementType::F32,
        DataType::kHALF => ElementType::F16,
        DataType::kBF16 => ElementType::Bf16,
        DataType::kINT32 => ElementType::I32,
        DataType::kINT64 => ElementType::I64,
        DataType::kINT8 => ElementType::Other("int8"),
        DataType::kBOOL => ElementType::Other("bool"),
        DataType::kUINT8 => ElementType::Other("uint8"),
        DataType::kFP8 => ElementType::Other("fp8"),
        DataType::kINT4 => ElementType::Other("int4"),
        DataType::kFP4 => ElementType::Other("fp4"),
        DataType::kE8M0 => ElementType::Other("e8m0"),
    }
}

/// The library's shape as a list; -1 stays -1.
fn shape(dims: &tensorrt_sys::Dims) -> Vec<i64> {
    dims.d.iter().take(usize::try_from(dims.nbDims).unwrap_or(0)).copied().collect()
}
