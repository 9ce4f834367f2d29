//! The fuzz target `onnx`: any bytes are summed up or refused in words, and a summary says what the whole file says when it is
//! decoded with prost.
//!
//! The summary reads more than the schema takes (text that is not UTF-8, broken nodes beside sound ones), so only what both can
//! read is compared.
//!
//! Not part of the server: it panics on any disagreement.

use std::io::Cursor;

use prost::Message;

use super::{ModelProto, Summary, port};

/// What the file says of itself, if it can be read.
///
/// # Panics
/// When the summary and the decoded file disagree, or the input is refused without words.
pub fn onnx(input: &[u8]) -> Option<Summary> {
    let mut reader = Cursor::new(input);
    let summary = match Summary::read_from(&mut reader, input.len() as u64) {
        Ok(summary) => summary,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    assert_eq!(reader.position(), input.len() as u64, "all of the file was passed");
    if let Ok(model) = ModelProto::decode(input) {
        check(&summary, model);
    }
    Some(summary)
}

fn check(summary: &Summary, model: ModelProto) {
    assert_eq!(summary.producer_name, model.producer_name);
    assert_eq!(summary.producer_version, model.producer_version);
    let opset = model.opset_import.iter().rev().find(|set| set.domain.is_empty()).map_or(0, |set| set.version);
    assert_eq!(summary.opset, opset);
    let metadata: Vec<(String, String)> =
        model.metadata_props.into_iter().map(|entry| (entry.key, entry.value)).collect();
    assert_eq!(summary.metadata, metadata);
    let graph = model.graph.unwrap_or_default();
    let external = graph.initializer.iter().flat_map(|tensor| &tensor.external_data);
    for entry in external.filter(|entry| entry.key == "location") {
        assert!(summary.external.contains(&entry.value), "{entry:?} is not in {:?}", summary.external);
    }
    assert_eq!(summary.inputs, graph.input.into_iter().map(port).collect::<Vec<_>>());
    assert_eq!(summary.outputs, graph.output.into_iter().map(port).collect::<Vec<_>>());
}
