//! The tensors of a model folder, found where they lie in memory-mapped files.
//!
//! Reads safetensors and PyTorch archives (`pytorch_model.bin` since PyTorch 1.6), each as one file or as shards with
//! an index. Of PyTorch's pickle only what a state dict needs is understood (`pickle`); nothing in a file is ever
//! executed.
//!
//! Invariant: after [`Weights::open`] every listed tensor lies wholly inside its file, so [`Weights::get`] can neither
//! fail nor read out of bounds. Bad bytes give a [`LoadError`] that names the file and, where there is one, the tensor;
//! they never panic. What the tensors mean is none of this file's business: [`Parameters`] gives them their roles.

#![allow(unsafe_code)] // memory-mapping the files

#[doc(hidden)]
pub mod fuzzing;
mod parameters;
mod pickle;

pub(super) use parameters::classifier_classes;
pub use parameters::{HeadParameters, LayerParameters, Linear, Norm, Parameters};

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io::Cursor;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::{SafeTensorError, TensorInfo};

use super::files::{SIDE_FILE_BYTES_MAX, open_regular, read_regular};
use crate::device::LoadError;

/// The weights that transformers and sentence-transformers write, in the order in which they are looked for.
const SINGLE_SAFETENSORS: &str = "model.safetensors";
const SHARDED_SAFETENSORS: &str = "model.safetensors.index.json";
const SINGLE_PYTORCH: &str = "pytorch_model.bin";
const SHARDED_PYTORCH: &str = "pytorch_model.bin.index.json";

/// The element types that are understood; all are stored little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
    /// Only ever position ids, which no role needs.
    I64,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 => 4,
            Dtype::I64 => 8,
        }
    }
}

/// One tensor in row-major order, borrowed from the mapped file unless it had to be gathered.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    pub shape: Vec<usize>,
    pub dtype: Dtype,
    /// `elements × dtype.size()` bytes, at any alignment.
    pub bytes: Cow<'a, [u8]>,
}

impl Tensor<'_> {
    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.elements()];
        self.copy_to_f32(&mut values);
        values
    }

    /// Writes the elements, converted, into `values`.
    ///
    /// # Panics
    /// When `values` has not exactly [`Tensor::elements`] places.
    pub fn copy_to_f32(&self, values: &mut [f32]) {
        assert_eq!(values.len(), self.elements());
        match self.dtype {
            Dtype::F32 => convert(&self.bytes, values, f32::from_le_bytes),
            Dtype::F16 => convert(&self.bytes, values, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::Bf16 => convert(&self.bytes, values, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            Dtype::I64 => convert(&self.bytes, values, |bytes| i64::from_le_bytes(bytes) as f32),
        }
    }
}

fn convert<const SIZE: usize>(bytes: &[u8], values: &mut [f32], one: impl Fn([u8; SIZE]) -> f32) {
    let (elements, _) = bytes.as_chunks::<SIZE>();
    for (value, element) in values.iter_mut().zip(elements) {
        *value = one(*element);
    }
}

/// Where one tensor's elements lie in its file.
#[derive(Debug)]
enum Place {
    Contiguous(Range<usize>),
    /// A view: element `i` along dimension `d` is `i × strides[d]` elements after the first, which begins `storage`.
    Strided {
        storage: Range<usize>,
        strides: Vec<usize>,
    },
}

#[derive(Debug)]
struct Entry {
    /// Index into [`Weights::files`].
    file: usize,
    /// `Err`: the name of a type that is not understood. Such a tensor is only an error if somebody wants it.
    dtype: Result<Dtype, String>,
    shape: Vec<usize>,
    place: Place,
}

/// All tensors of one folder, by name.
#[derive(Debug)]
pub struct Weights {
    files: Vec<(PathBuf, Mmap)>,
    entries: HashMap<String, Entry>,
}

impl Weights {
    /// Maps the folder's weights and lists their tensors.
    ///
    /// The files must not be changed or shortened while the result lives.
    pub fn open(folder: &Path) -> Result<Weights, LoadError> {
        let mut weights = Weights { files: Vec::new(), entries: HashMap::new() };
        if folder.join(SINGLE_SAFETENSORS).is_file() {
            weights.add_safetensors(folder.join(SINGLE_SAFETENSORS))?;
        } else if folder.join(SHARDED_SAFETENSORS).is_file() {
            weights.add_shards(folder, SHARDED_SAFETENSORS, Weights::add_safetensors)?;
        } else if folder.join(SINGLE_PYTORCH).is_file() {
            weights.add_pytorch(folder.join(SINGLE_PYTORCH))?;
        } else if folder.join(SHARDED_PYTORCH).is_file() {
            weights.add_shards(folder, SHARDED_PYTORCH, Weights::add_pytorch)?;
        } else {
            return Err(LoadError(format!(
                "{}: no weights here; looked for {SINGLE_SAFETENSORS}, {SHARDED_SAFETENSORS}, {SINGLE_PYTORCH} and \
                 {SHARDED_PYTORCH}",
                folder.display()
            )));
        }
        Ok(weights)
    }

    /// The tensor of this name; `None` if there is none or if it holds a type that [`Dtype`] does not know.
    pub fn get(&self, name: &str) -> Option<Tensor<'_>> {
        let entry = self.entries.get(name)?;
        let dtype = *entry.dtype.as_ref().ok()?;
        let file = &self.files[entry.file].1;
        let bytes = match &entry.place {
            Place::Contiguous(range) => Cow::Borrowed(&file[range.clone()]),
            Place::Strided { storage, strides } => {
                Cow::Owned(gather(&file[storage.clone()], dtype.size(), &entry.shape, strides))
            }
        };
        Some(Tensor { shape: entry.shape.clone(), dtype, bytes })
    }

    /// The mapped files with their bytes, shards in the order of their names.
    pub fn files(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.files.iter().map(|(path, map)| (path.as_path(), &map[..]))
    }

    /// Names in no particular order, those of unknown types included.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The shape of a tensor, whatever its type.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|entry| entry.shape.as_slice())
    }

    /// The type of a tensor as its file calls it, if it is one that [`Dtype`] does not know.
    fn unknown_dtype(&self, name: &str) -> Option<&str> {
        self.entries.get(name)?.dtype.as_ref().err().map(String::as_str)
    }

    /// The file in which a tensor lies, for messages; the first file for a tensor that does not exist.
    fn file_of(&self, name: &str) -> &Path {
        let file = self.entries.get(name).map_or(0, |entry| entry.file);
        &self.files[file].0
    }

    fn map(&mut self, path: PathBuf) -> Result<usize, LoadError> {
        let file = open_regular(&path).map_err(|error| at(&path, error))?;
        // SAFETY: the map is read-only and private. Rust's demand that nobody changes the file meanwhile is handed on
        // to the caller in the documentation of `open`; as everywhere, a file that is shortened under the map is a
        // SIGBUS.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| at(&path, error))?;
        if map.starts_with(b"version https://git-lfs") {
            return Err(at(&path, "a Git LFS pointer, not the weights; run `git lfs pull` in its repository"));
        }
        self.files.push((path, map));
        Ok(self.files.len() - 1)
    }

    /// Adds every shard that an index names, once, and checks that each tensor is where the index says.
    fn add_shards(
        &mut self,
        folder: &Path,
        index_name: &str,
        add: fn(&mut Weights, PathBuf) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let index_path = folder.join(index_name);
        let text = read_regular(&index_path, SIDE_FILE_BYTES_MAX).map_err(|error| at(&index_path, error))?;
        let index: Index = serde_json::from_slice(&text).map_err(|error| at(&index_path, error))?;
        let mut shards: Vec<&String> = index.weight_map.values().collect();
        shards.sort();
        shards.dedup();
        for shard in shards {
            if Path::new(shard).file_name() != Some(shard.as_ref()) {
                return Err(at(&index_path, format!("`{shard}` is not a file name")));
            }
            add(self, folder.join(shard))?;
        }
        for (name, shard) in &index.weight_map {
            let found = self.entries.get(name).is_some_and(|entry| self.files[entry.file].0.ends_with(shard));
            if !found {
                return Err(at(&index_path, format!("tensor `{name}` is not in `{shard}`")));
            }
        }
        Ok(())
    }

    fn add_entry(&mut self, name: &str, entry: Entry) -> Result<(), LoadError> {
        let file = entry.file;
        match self.entries.insert(name.to_owned(), entry) {
            None => Ok(()),
            Some(_) => Err(at(&self.files[file].0, format!("tensor `{name}` is there twice"))),
        }
    }

    fn add_safetensors(&mut self, path: PathBuf) -> Result<(), LoadError> {
        let file = self.map(path)?;
        let found = {
            let (path, map) = &self.files[file];
            safetensors_entries(map, file).map_err(|words| at(path, words))?
        };
        found.into_iter().try_for_each(|(name, entry)| self.add_entry(&name, entry))
    }

    fn add_pytorch(&mut self, path: PathBuf) -> Result<(), LoadError> {
        let file = self.map(path)?;
        let found = {
            let (path, map) = &self.files[file];
            pytorch_entries(map, file).map_err(|words| at(path, words))?
        };
        found.into_iter().try_for_each(|(name, entry)| self.add_entry(&name, entry))
    }
}

fn at(path: &Path, words: impl std::fmt::Display) -> LoadError {
    LoadError(format!("{}: {words}", path.display()))
}

/// The tensors of a safetensors file.
fn safetensors_entries(map: &[u8], file: usize) -> Result<Vec<(String, Entry)>, String> {
    let (header_bytes, metadata) = SafeTensors::read_metadata(map).map_err(|error| safetensors_words(map, &error))?;
    let entry = |(name, info): (String, &TensorInfo)| {
        let dtype = match info.dtype {
            safetensors::Dtype::F32 => Ok(Dtype::F32),
            safetensors::Dtype::F16 => Ok(Dtype::F16),
            safetensors::Dtype::BF16 => Ok(Dtype::Bf16),
            safetensors::Dtype::I64 => Ok(Dtype::I64),
            other => Err(format!("{other:?}")),
        };
        // The length of the header is 8 bytes before it; `read_metadata` has checked every range.
        let start = header_bytes + 8;
        let place = Place::Contiguous(start + info.data_offsets.0..start + info.data_offsets.1);
        (name, Entry { file, dtype, shape: info.shape.clone(), place })
    };
    Ok(metadata.tensors().into_iter().map(entry).collect())
}

/// What is wrong with a safetensors file. For one that is too short, the first tensor that is not all there.
fn safetensors_words(file: &[u8], error: &SafeTensorError) -> String {
    let cut = || -> Option<String> {
        let (length, rest) = file.split_first_chunk::<8>()?;
        let header = rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        let tensors: HashMap<String, serde_json::Value> = serde_json::from_slice(header).ok()?;
        let present = (file.len() - 8 - header.len()) as u64;
        let end_of = |info: &serde_json::Value| info.get("data_offsets")?.get(1)?.as_u64();
        let ends = tensors.iter().filter_map(|(name, info)| Some((end_of(info)?, name)));
        let (end, name) = ends.filter(|(end, _)| *end > present).min()?;
        Some(format!("cut short: tensor `{name}` ends at byte {end} of the data, and {present} are there"))
    };
    match error {
        SafeTensorError::HeaderTooSmall | SafeTensorError::InvalidHeaderLength => {
            "cut short: the file ends within its header".to_owned()
        }
        other => cut().unwrap_or_else(|| format!("not a safetensors file: {other}")),
    }
}

/// The tensors of a PyTorch archive: a zip of `*/data.pkl` (the state dict, pickled) and `*/data/KEY` (one storage
/// each).
fn pytorch_entries(map: &[u8], file: usize) -> Result<Vec<(String, Entry)>, String> {
    if !map.starts_with(b"PK") {
        return Err(
            "not a zip archive; if PyTorch before 1.6 wrote it, load it and save it again with a newer one".into()
        );
    }
    let members = zip_members(map)?;
    let is_pickle = |name: &&String| name.ends_with("/data.pkl") || name.as_str() == "data.pkl";
    let pickle_name = members.keys().find(is_pickle).ok_or("an archive without data.pkl is not PyTorch's")?;
    let root = &pickle_name[..pickle_name.len() - "data.pkl".len()];
    if let Some(range) = members.get(&format!("{root}byteorder"))
        && &map[range.clone()] != b"little"
    {
        return Err("its byte order is not little-endian".into());
    }
    let state =
        pickle::state_dict(&map[members[pickle_name].clone()]).map_err(|words| format!("{pickle_name}: {words}"))?;
    let mut entries = Vec::with_capacity(state.len());
    for (name, view) in state {
        let storage_name = format!("{root}data/{}", view.storage);
        let storage =
            members.get(&storage_name).ok_or_else(|| format!("tensor `{name}`: no member {storage_name}"))?.clone();
        let entry = view_entry(file, storage, &view).map_err(|words| format!("tensor `{name}`: {words}"))?;
        entries.push((name.to_owned(), entry));
    }
    Ok(entries)
}

/// Where each member's bytes lie. PyTorch stores members uncompressed; a repacked archive is refused.
fn zip_members(map: &[u8]) -> Result<BTreeMap<String, Range<usize>>, String> {
    let damaged = |error: zip::result::ZipError| format!("not a whole zip archive: {error}");
    let mut archive = zip::ZipArchive::new(Cursor::new(map)).map_err(damaged)?;
    let mut members = BTreeMap::new();
    for index in 0..archive.len() {
        let member = archive.by_index_raw(index).map_err(damaged)?;
        let name = member.name().map_err(damaged)?.into_owned();
        if member.compression() != zip::CompressionMethod::Stored || member.encrypted() {
            return Err(format!("member {name} is compressed; PyTorch stores them plain"));
        }
        let range = member.data_start().and_then(|start| {
            let start = usize::try_from(start).ok()?;
            let end = start.checked_add(usize::try_from(member.size()).ok()?)?;
            (end <= map.len()).then_some(start..end)
        });
        members.insert(name.clone(), range.ok_or_else(|| format!("cut short: member {name} is not all there"))?);
    }
    Ok(members)
}

/// Checks that a pickled view lies inside its storage.
fn view_entry(file: usize, storage: Range<usize>, view: &pickle::View<'_>) -> Result<Entry, String> {
    let shape = view.shape.clone();
    let (dtype, size) = match view.storage_class {
        "FloatStorage" => (Ok(Dtype::F32), 4),
        "HalfStorage" => (Ok(Dtype::F16), 2),
        "BFloat16Storage" => (Ok(Dtype::Bf16), 2),
        "LongStorage" => (Ok(Dtype::I64), 8),
        other => return Ok(Entry { file, dtype: Err(other.to_owned()), shape, place: Place::Contiguous(0..0) }),
    };
    let outside =
        || format!("shape {shape:?} at element {} lies outside its storage of {} bytes", view.offset, storage.len());
    let elements = shape.iter().try_fold(1usize, |product, &count| product.checked_mul(count)).ok_or_else(outside)?;
    // The elements between the first and the last of the view, both included.
    let span = shape
        .iter()
        .zip(&view.strides)
        .try_fold(1usize, |span, (&count, &stride)| span.checked_add(stride.checked_mul(count.saturating_sub(1))?));
    let span = if elements == 0 { 0 } else { span.ok_or_else(outside)? };
    let start = view.offset.checked_mul(size).ok_or_else(outside)?;
    let length = span.checked_mul(size).ok_or_else(outside)?;
    let end = start.checked_add(length).filter(|&end| end <= storage.len()).ok_or_else(outside)?;
    let range = storage.start + start..storage.start + end;
    if is_contiguous(&shape, &view.strides) {
        return Ok(Entry { file, dtype, shape, place: Place::Contiguous(range) });
    }
    // Strides that visit an element twice could ask for any amount of memory.
    if elements > span {
        return Err(format!("shape {shape:?} with strides {:?} repeats its elements", view.strides));
    }
    Ok(Entry { file, dtype, shape, place: Place::Strided { storage: range, strides: view.strides.clone() } })
}

/// True where row-major order is the order of the storage. Nothing is, in any order.
fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1;
    for (&count, &stride) in shape.iter().zip(strides).rev() {
        if count != 1 && stride != expected {
            return false;
        }
        expected *= count;
    }
    true
}

/// Copies a strided view out in row-major order. The caller has checked that it lies inside `storage`.
fn gather(storage: &[u8], size: usize, shape: &[usize], strides: &[usize]) -> Vec<u8> {
    let elements: usize = shape.iter().product();
    let mut bytes = Vec::with_capacity(elements * size);
    let mut index = vec![0usize; shape.len()];
    for _ in 0..elements {
        let first = size * index.iter().zip(strides).map(|(index, stride)| index * stride).sum::<usize>();
        bytes.extend_from_slice(&storage[first..first + size]);
        for dimension in (0..shape.len()).rev() {
            index[dimension] += 1;
            if index[dimension] < shape[dimension] {
                break;
            }
            index[dimension] = 0;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::model::sample::{Random, Sample, TemporaryFolder, safetensors_of};
    use crate::model::{Model, Task, folder};

    type Named = (String, Vec<usize>, Vec<f32>);

    fn few() -> Vec<Named> {
        vec![
            ("one".into(), vec![2, 3], vec![1.0, -2.0, 3.5, 0.25, -0.5, 1024.0]),
            ("two".into(), vec![4], vec![0.0, -0.0, 65504.0, 1.0]),
            ("empty".into(), vec![0, 3], vec![]),
        ]
    }

    #[test]
    fn a_view_of_nothing_may_have_any_shape() {
        let shape = vec![0, 1 << 40, 1 << 40];
        let view = pickle::View {
            storage: "0",
            storage_class: "FloatStorage",
            offset: 0,
            strides: vec![1, 1 << 40, 1],
            shape: shape.clone(),
        };
        let entry = view_entry(0, 10..10, &view).expect("nothing lies in nothing");
        assert_eq!(entry.shape, shape);
        assert!(matches!(entry.place, Place::Contiguous(range) if range == (10..10)));
    }

    fn open(folder: &TemporaryFolder) -> Result<Weights, String> {
        Weights::open(folder.path()).map_err(|error| error.0)
    }

    fn assert_holds(weights: &Weights, expected: &[Named]) {
        assert_eq!(weights.names().count(), expected.len());
        for (name, shape, values) in expected {
            let tensor = weights.get(name).expect("it is there");
            assert_eq!((&tensor.shape, &tensor.to_f32()), (shape, values), "{name}");
        }
        assert_eq!(weights.get("three"), None);
    }

    /// Pushes a pickled state dict together, as PyTorch writes one.
    struct Pickle(Vec<u8>);

    impl Pickle {
        fn text(&mut self, text: &str) {
            self.0.push(b'X');
            self.0.extend((text.len() as u32).to_le_bytes());
            self.0.extend(text.as_bytes());
        }

        fn integer(&mut self, value: usize) {
            match value {
                0..=255 => self.0.extend([b'K', value as u8]),
                256..=65_535 => {
                    self.0.push(b'M');
                    self.0.extend((value as u16).to_le_bytes());
                }
                _ => {
                    self.0.push(b'J');
                    self.0.extend((value as i32).to_le_bytes());
                }
            }
        }

        fn tuple(&mut self, values: &[usize]) {
            self.0.push(b'(');
            values.iter().for_each(|&value| self.integer(value));
            self.0.push(b't');
        }

        fn tensor(&mut self, class: &str, key: &str, offset: usize, shape: &[usize], strides: &[usize]) {
            self.0.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
            self.text("storage");
            self.0.extend(format!("ctorch\n{class}\n").as_bytes());
            self.text(key);
            self.text("cpu");
            self.integer(1);
            self.0.extend(b"tQ");
            self.integer(offset);
            self.tuple(shape);
            self.tuple(strides);
            self.0.extend(b"\x89ccollections\nOrderedDict\n)RtR");
        }

        fn state_dict(entries: impl FnOnce(&mut Pickle)) -> Vec<u8> {
            let mut pickle = Pickle(b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01(".to_vec());
            entries(&mut pickle);
            // A state dict ends with `_metadata`, set as an attribute.
            pickle.0.extend(b"u}X\x09\x00\x00\x00_metadatah\x00)Rsb.");
            pickle.0
        }
    }

    fn archive(pickle: &[u8], storages: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let plain = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let mut add = |name: String, bytes: &[u8]| {
            writer.start_file(name, plain).expect("an archive in memory can be written");
            writer.write_all(bytes).expect("an archive in memory can be written");
        };
        add("archive/data.pkl".into(), pickle);
        add("archive/byteorder".into(), b"little");
        storages.iter().for_each(|(key, bytes)| add(format!("archive/data/{key}"), bytes));
        writer.finish().expect("an archive in memory can be written").into_inner()
    }

    fn bytes_of(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn pytorch_of(tensors: &[Named]) -> Vec<u8> {
        let pickle = Pickle::state_dict(|pickle| {
            for (index, (name, shape, _)) in tensors.iter().enumerate() {
                pickle.text(name);
                let strides: Vec<usize> = (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect();
                pickle.tensor("FloatStorage", &index.to_string(), 0, shape, &strides);
            }
        });
        let keys: Vec<String> = (0..tensors.len()).map(|index| index.to_string()).collect();
        let storages: Vec<(&str, Vec<u8>)> =
            keys.iter().zip(tensors).map(|(key, tensor)| (key.as_str(), bytes_of(&tensor.2))).collect();
        archive(&pickle, &storages)
    }

    #[test]
    fn both_formats_whole_and_sharded() {
        type Write = fn(&[Named]) -> Vec<u8>;
        let formats: [(&str, &str, Write); 2] =
            [("model", "safetensors", safetensors_of), ("pytorch_model", "bin", pytorch_of)];
        for (stem, extension, write) in formats {
            let place = TemporaryFolder::new();
            place.write(&format!("{stem}.{extension}"), write(&few()));
            assert_holds(&open(&place).expect("a good file"), &few());

            let place = TemporaryFolder::new();
            let (one, two) = (format!("{stem}-1.{extension}"), format!("{stem}-2.{extension}"));
            place.write(&one, write(&few()[..1]));
            place.write(&two, write(&few()[1..]));
            let index_name = format!("{stem}.{extension}.index.json");
            let mut map = serde_json::json!({"weight_map": {"one": one, "two": two, "empty": two}});
            place.write(&index_name, map.to_string());
            assert_holds(&open(&place).expect("good shards"), &few());

            map["weight_map"]["one"] = two.clone().into();
            place.write(&index_name, map.to_string());
            let error = open(&place).expect_err("the first shard is not named");
            assert!(error.contains(&index_name) && error.contains("`one`"), "{error}");
            map["weight_map"]["one"] = "../one".into();
            place.write(&index_name, map.to_string());
            assert!(open(&place).expect_err("a path").contains("`../one` is not a file name"));
            map["weight_map"]["one"] = "gone".into();
            place.write(&index_name, map.to_string());
            assert!(open(&place).expect_err("a shard is missing").contains("gone"));
        }
        let place = TemporaryFolder::new();
        let error = open(&place).expect_err("an empty folder");
        assert!(error.contains("model.safetensors") && error.contains("pytorch_model.bin"), "{error}");
        place.write("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
        assert!(open(&place).expect_err("a pointer").contains("git lfs pull"));
    }

    #[test]
    fn halves_are_converted_exactly() {
        let values = [1.0f32, -2.5, 0.0, 6.1035156e-5];
        let halves: Vec<u8> = values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect();
        let brains: Vec<u8> = values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect();
        let longs: Vec<u8> = [1i64, -2, 3, 1 << 40].iter().flat_map(|value| value.to_le_bytes()).collect();
        let pickle = Pickle::state_dict(|pickle| {
            for (name, class, key) in
                [("half", "HalfStorage", "0"), ("brain", "BFloat16Storage", "1"), ("long", "LongStorage", "2")]
            {
                pickle.text(name);
                pickle.tensor(class, key, 0, &[4], &[1]);
            }
            pickle.text("mask");
            pickle.tensor("BoolStorage", "3", 0, &[4], &[1]);
        });
        let place = TemporaryFolder::new();
        let storages = [("0", halves), ("1", brains), ("2", longs), ("3", vec![1; 4])];
        place.write("pytorch_model.bin", archive(&pickle, &storages));
        let weights = open(&place).expect("a good file");
        for (name, dtype) in [("half", Dtype::F16), ("brain", Dtype::Bf16)] {
            let tensor = weights.get(name).expect("it is there");
            assert_eq!((tensor.dtype, tensor.to_f32()), (dtype, values.to_vec()), "{name}");
        }
        let long = weights.get("long").expect("it is there");
        assert_eq!((long.dtype, long.to_f32()), (Dtype::I64, vec![1.0, -2.0, 3.0, (1u64 << 40) as f32]));
        assert_eq!(weights.get("mask"), None, "an unknown type is no error until somebody wants it");
        assert_eq!(weights.unknown_dtype("mask"), Some("BoolStorage"));
        assert_eq!(weights.shape("mask"), Some(&[4][..]));
    }

    #[test]
    fn views_of_a_storage_are_gathered() {
        type View<'a> = (&'a str, usize, &'a [usize], &'a [usize], Vec<f32>);
        let values: Vec<f32> = (0..24).map(|value| value as f32).collect();
        let views: [View<'_>; 5] = [
            ("whole", 0, &[4, 6], &[6, 1], values.clone()),
            ("rows", 12, &[1, 6], &[99, 1], values[12..18].to_vec()),
            ("transposed", 0, &[3, 2], &[1, 6], vec![0.0, 6.0, 1.0, 7.0, 2.0, 8.0]),
            ("every second", 1, &[4], &[2], vec![1.0, 3.0, 5.0, 7.0]),
            ("scalar", 23, &[], &[], vec![23.0]),
        ];
        let pickle = Pickle::state_dict(|pickle| {
            for (name, offset, shape, strides, _) in &views {
                pickle.text(name);
                pickle.tensor("FloatStorage", "7", *offset, shape, strides);
            }
        });
        let place = TemporaryFolder::new();
        place.write("pytorch_model.bin", archive(&pickle, &[("7", bytes_of(&values))]));
        let weights = open(&place).expect("a good file");
        for (name, _, shape, _, expected) in &views {
            let tensor = weights.get(name).expect("it is there");
            assert_eq!((tensor.shape.as_slice(), &tensor.to_f32()), (*shape, expected), "{name}");
        }
    }

    #[test]
    fn what_does_not_lie_in_its_storage_is_refused_by_name() {
        let huge = i32::MAX as usize;
        let bad: [(usize, &[usize], &[usize]); 6] = [
            (1, &[6], &[1]),
            (0, &[2, 3], &[4, 1]),
            (huge, &[1], &[1]),
            (0, &[huge, huge, huge], &[1, 1, 1]),
            (0, &[huge, 2], &[0, 1]),
            (0, &[2, 2], &[huge, huge]),
        ];
        for (offset, shape, strides) in bad {
            let pickle = Pickle::state_dict(|pickle| {
                pickle.text("culprit");
                pickle.tensor("FloatStorage", "0", offset, shape, strides);
            });
            let place = TemporaryFolder::new();
            place.write("pytorch_model.bin", archive(&pickle, &[("0", bytes_of(&[0.0; 6]))]));
            let error = open(&place).expect_err("it reaches beyond");
            assert!(error.contains("`culprit`") && error.contains("pytorch_model.bin"), "{error}");
        }
        let pickle = Pickle::state_dict(|pickle| {
            pickle.text("culprit");
            pickle.tensor("FloatStorage", "1", 0, &[1], &[1]);
        });
        let place = TemporaryFolder::new();
        place.write("pytorch_model.bin", archive(&pickle, &[("0", bytes_of(&[0.0]))]));
        assert!(open(&place).expect_err("no such storage").contains("archive/data/1"));
    }

    #[test]
    fn nothing_in_a_pickle_is_executed() {
        let place = TemporaryFolder::new();
        for (what, pickle) in [
            ("`os.system`", &b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R."[..]),
            ("`builtins.eval`", b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R."),
            ("`torch.load`", b"\x80\x02ctorch\nload\n."),
            ("0x69", b"\x80\x02(ios\nsystem\n."),
            ("not a state dict", b"\x80\x02K\x01."),
            ("not a state dict", b"\x80\x02}X\x01\x00\x00\x00aK\x01s."),
        ] {
            place.write("pytorch_model.bin", archive(pickle, &[]));
            let error = open(&place).expect_err("it is not a state dict");
            assert!(error.contains(what), "{what}: {error}");
        }
        // Nesting that would overflow the stack of a reader that recurses, or of one that drops recursively.
        let deep: Vec<u8> = b"\x80\x02)".iter().chain(vec![0x85; 3_000_000].iter()).chain(b".").copied().collect();
        place.write("pytorch_model.bin", archive(&deep, &[]));
        assert!(open(&place).expect_err("a tuple").contains("not a state dict"));
    }

    /// Cuts and flipped bits, everywhere: an error or other values, never a panic and never a read outside.
    #[test]
    fn damaged_files_never_panic() {
        let mut random = Random(4);
        for (name, whole) in [("model.safetensors", safetensors_of(&few())), ("pytorch_model.bin", pytorch_of(&few()))]
        {
            let place = TemporaryFolder::new();
            for length in 0..whole.len() {
                place.write(name, &whole[..length]);
                let error = open(&place).expect_err("a file cut short");
                assert!(error.contains(name), "{length}: {error}");
            }
            for _ in 0..2_000 {
                let mut damaged = whole.clone();
                for _ in 0..=random.below(3) {
                    let index = random.below(damaged.len());
                    damaged[index] ^= 1 << random.below(8);
                }
                place.write(name, &damaged);
                if let Ok(weights) = open(&place) {
                    weights.names().filter_map(|name| weights.get(name)).for_each(|tensor| drop(tensor.to_f32()));
                }
            }
        }
        let whole = safetensors_of(&few());
        let place = TemporaryFolder::new();
        place.write("model.safetensors", &whole[..whole.len() - 4]);
        let error = open(&place).expect_err("a file cut short");
        assert!(error.contains("cut short: tensor `"), "{error}");
    }

    fn model_of(place: &TemporaryFolder, sample: &Sample) -> Model {
        folder::read(place.path(), None, &sample.settings()).expect("a sample is a good folder")
    }

    #[test]
    fn roles_are_found_under_every_usual_name() {
        let renames: [fn(&str) -> String; 4] = [
            str::to_owned,
            |name| name.replace("bert.", ""),
            |name| name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"),
            |name| format!("model.{name}"),
        ];
        for sample in [Sample::bert(Task::Nli), Sample::roberta(Task::Reranking)] {
            for (number, rename) in renames.iter().enumerate() {
                let place = TemporaryFolder::new();
                sample.write_files(&place);
                let tensors: Vec<Named> =
                    sample.tensors().into_iter().map(|(name, shape, values)| (rename(&name), shape, values)).collect();
                place.write("model.safetensors", safetensors_of(&tensors));
                let weights = open(&place).expect("a good file");
                let parameters = Parameters::resolve(&weights, &model_of(&place, &sample));
                let parameters = parameters.unwrap_or_else(|error| panic!("rename {number}: {error}"));
                assert_eq!(parameters.layers.len(), sample.layers);
                let expected = |wanted: &str| {
                    let found = sample.tensors().into_iter().find(|(name, ..)| name.ends_with(wanted));
                    found.expect("samples have this tensor").2
                };
                let last = &parameters.layers[1];
                assert_eq!(last.key.weight.to_f32(), expected("layer.1.attention.self.key.weight"));
                assert_eq!(last.output_norm.bias.to_f32(), expected("layer.1.output.LayerNorm.bias"));
                let HeadParameters::Classifier { dense, output } = &parameters.head else { panic!("a classifier") };
                assert_eq!(dense.weight.shape, [48, 48]);
                assert_eq!(output.weight.shape, [sample.classes, 48]);
            }
        }
    }

    #[test]
    fn what_does_not_fit_config_json_is_named_with_both_shapes() {
        let sample = Sample::bert(Task::Nli);
        let place = TemporaryFolder::new();
        sample.write_files(&place);
        let model = model_of(&place, &sample);
        let resolve = |tensors: &[Named]| {
            place.write("model.safetensors", safetensors_of(tensors));
            let weights = open(&place).expect("a good file");
            Parameters::resolve(&weights, &model).map(drop).map_err(|error| error.0)
        };
        assert_eq!(resolve(&sample.tensors()), Ok(()));
        for (index, (name, ..)) in sample.tensors().iter().enumerate() {
            let mut tensors = sample.tensors();
            let (_, shape, values) = &mut tensors[index];
            shape[0] += 1;
            values.resize(shape.iter().product(), 0.0);
            let (found, error) = (format!("{shape:?}"), resolve(&tensors).expect_err("a wrong shape"));
            for part in ["model.safetensors", name, &found, "config.json asks for"] {
                assert!(error.contains(part), "{name}: {error}");
            }
            let mut tensors = sample.tensors();
            tensors.remove(index);
            let error = resolve(&tensors).expect_err("a missing tensor");
            assert!(error.contains(name) || error.contains("word_embeddings"), "{name}: {error}");
        }
    }
}
