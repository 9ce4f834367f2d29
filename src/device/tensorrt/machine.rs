//! Which GPU is here, asked before the library is.
//!
//! Owned here: nothing; the driver is opened, asked and left. Invariant: no driver, no GPU and an old driver are answers in
//! words, never a panic.
#![allow(unsafe_code)]

use cudarc::driver::{result, sys};

use crate::model::engine::Capability;

/// A GPU as the driver names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    pub name: String,
    pub capability: Capability,
}

/// The first GPU that CUDA shows to this process (`CUDA_VISIBLE_DEVICES`), which is the one that the library uses if nobody
/// chooses another.
pub fn gpu() -> Result<Gpu, String> {
    // SAFETY: opens the driver's library and closes it; its initialisers are those that every CUDA program runs.
    if !unsafe { sys::is_culib_present() } {
        return Err("there is no NVIDIA driver here (libcuda.so.1 was not found)".into());
    }
    let words = |what: &str, error: result::DriverError| format!("{what}: CUDA error {} ({error:?})", error.0 as u32);
    result::init().map_err(|error| words("the NVIDIA driver does not start", error))?;
    let device = result::device::get(0).map_err(|error| words("the NVIDIA driver shows no GPU", error))?;
    let name = result::device::get_name(device).map_err(|error| words("the GPU has no name", error))?;
    let attribute = |attribute| {
        // SAFETY: the device is one that the driver gave.
        let value = unsafe { result::device::get_attribute(device, attribute) };
        value.map_err(|error| words("the GPU does not tell its compute capability", error))
    };
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let (major, minor) = (attribute(MAJOR)?.unsigned_abs(), attribute(MINOR)?.unsigned_abs());
    Ok(Gpu { name, capability: Capability { major, minor } })
}
