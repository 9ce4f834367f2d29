//! The fuzz target `weights`: any bytes are a file of tensors or are refused in words, and every tensor found lies in its file
//! and has as many bytes as its shape says.
//!
//! Not part of the server: it panics on any disagreement.

use super::{Entry, Place, gather, pickle, pytorch_entries, safetensors_entries, view_entry};

/// Strided views are gathered by a second, slower way up to this many elements.
const GATHERED_MAX: usize = 4096;

/// The first byte says what the rest is: a safetensors file, a PyTorch archive, or the pickle of one with storages of as many
/// bytes as the input has. How many tensors there are, if it can be read.
///
/// # Panics
/// When a tensor lies outside of its file or has other bytes than its shape.
pub fn weights(input: &[u8]) -> Option<usize> {
    let (&kind, file) = input.split_first().unwrap_or((&0, b""));
    let entries = match kind % 3 {
        0 => safetensors_entries(file, 0),
        1 => pytorch_entries(file, 0),
        _ => pickled(file),
    };
    let entries = match entries {
        Ok(entries) => entries,
        Err(words) => {
            assert!(!words.is_empty());
            return None;
        }
    };
    entries.iter().for_each(|(name, entry)| check(name, entry, file));
    Some(entries.len())
}

fn pickled(bytes: &[u8]) -> Result<Vec<(String, Entry)>, String> {
    let state = pickle::state_dict(bytes)?;
    let entry = |(name, view): (&str, pickle::View<'_>)| Ok((name.to_owned(), view_entry(0, 0..bytes.len(), &view)?));
    state.into_iter().map(entry).collect()
}

fn check(name: &str, entry: &Entry, file: &[u8]) {
    let Ok(dtype) = entry.dtype else { return };
    let elements = entry.shape.iter().try_fold(1usize, |product, &count| product.checked_mul(count));
    let elements = elements.unwrap_or_else(|| panic!("{name}: {:?}", entry.shape));
    match &entry.place {
        Place::Contiguous(range) => {
            let bytes = &file[range.clone()];
            assert_eq!(bytes.len(), elements * dtype.size(), "{name}: {:?}", entry.shape);
        }
        Place::Strided { storage, strides } => {
            let storage = &file[storage.clone()];
            assert!(elements <= storage.len() / dtype.size(), "{name}: {:?} asks for more than there is", entry.shape);
            if elements <= GATHERED_MAX {
                let gathered = gather(storage, dtype.size(), &entry.shape, strides);
                assert_eq!(gathered, gathered_slowly(storage, dtype.size(), &entry.shape, strides), "{name}");
            }
        }
    }
}

/// Element by element, the index of each worked out anew.
fn gathered_slowly(storage: &[u8], size: usize, shape: &[usize], strides: &[usize]) -> Vec<u8> {
    let elements: usize = shape.iter().product();
    let element = |mut index: usize| {
        let mut at = 0;
        for (&count, &stride) in shape.iter().zip(strides).rev() {
            at += index % count * stride;
            index /= count;
        }
        &storage[at * size..][..size]
    };
    (0..elements).flat_map(element).copied().collect()
}
