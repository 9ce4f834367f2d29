//! The encoder once more, naively and in f64: what the fast one is compared with.
//!
//! Written from the published descriptions of BERT and RoBERTa, loop by loop, straight from the stored tensors. It
//! shares nothing with the fast encoder but the reading of weights, and is meant to be read beside the papers.

use crate::model::weights::{HeadParameters, Linear, Norm, Parameters, Tensor, Weights};
use crate::model::{Activation, Architecture, Geometry, Model, Pooling, Source};

type Rows = Vec<Vec<f64>>;

fn row(tensor: &Tensor<'_>, index: usize) -> Vec<f64> {
    let width = tensor.shape[1];
    tensor.to_f32()[index * width..(index + 1) * width].iter().map(|&value| f64::from(value)).collect()
}

fn linear(input: &[f64], layer: &Linear<'_>) -> Vec<f64> {
    let (weight, bias) = (layer.weight.to_f32(), layer.bias.to_f32());
    let dot = |weights: &[f32]| weights.iter().zip(input).map(|(&weight, x)| f64::from(weight) * x).sum::<f64>();
    weight.chunks(input.len()).zip(bias).map(|(weights, bias)| dot(weights) + f64::from(bias)).collect()
}

fn norm(input: &[f64], layer: &Norm<'_>, epsilon: f32) -> Vec<f64> {
    let count = input.len() as f64;
    let mean = input.iter().sum::<f64>() / count;
    let deviation = (input.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count + f64::from(epsilon)).sqrt();
    let (weight, bias) = (layer.weight.to_f32(), layer.bias.to_f32());
    let scaled = input.iter().map(|x| (x - mean) / deviation);
    scaled.zip(weight).zip(bias).map(|((x, weight), bias)| x * f64::from(weight) + f64::from(bias)).collect()
}

fn sum(one: &[f64], two: &[f64]) -> Vec<f64> {
    one.iter().zip(two).map(|(one, two)| one + two).collect()
}

/// The error function's integral by Simpson's rule, 400 steps.
fn erf(x: f64) -> f64 {
    let steps = 400;
    let width = x / f64::from(steps);
    let total: f64 = (0..=steps)
        .map(|step| {
            let weight = if step == 0 || step == steps { 1.0 } else { f64::from(2 + 2 * (step % 2)) };
            weight * (-(f64::from(step) * width).powi(2)).exp()
        })
        .sum();
    total * width / 3.0 * 2.0 / std::f64::consts::PI.sqrt()
}

fn activate(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Gelu => x / 2.0 * (1.0 + erf(x / 2f64.sqrt())),
        Activation::GeluTanh => {
            x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::Relu => x.max(0.0),
    }
}

fn embeddings(parameters: &Parameters<'_>, geometry: &Geometry, ids: &[u32], types: &[u8]) -> Rows {
    let mut next = geometry.position_offset;
    let mut rows = Vec::new();
    for (&id, &token_type) in ids.iter().zip(types) {
        let is_padding = geometry.architecture == Architecture::Roberta && id as usize + 1 == geometry.position_offset;
        let position = if is_padding { id as usize } else { next };
        next += usize::from(!is_padding);
        let word = row(&parameters.word_embeddings, id as usize);
        let token_type = if geometry.token_types == 1 { 0 } else { token_type as usize };
        let words_and_types = sum(&word, &row(&parameters.token_type_embeddings, token_type));
        let total = sum(&words_and_types, &row(&parameters.position_embeddings, position));
        rows.push(norm(&total, &parameters.embedding_norm, geometry.layer_norm_eps));
    }
    rows
}

fn attention(queries: &Rows, keys: &Rows, values: &Rows, heads: usize) -> Rows {
    let width = queries[0].len() / heads;
    let mut context = vec![vec![0.0; queries[0].len()]; queries.len()];
    for head in 0..heads {
        let part = head * width..(head + 1) * width;
        for (query, context) in queries.iter().zip(&mut context) {
            let score = |key: &Vec<f64>| {
                let pairs = query[part.clone()].iter().zip(&key[part.clone()]);
                (pairs.map(|(query, key)| query * key).sum::<f64>() / (width as f64).sqrt()).exp()
            };
            let scores: Vec<f64> = keys.iter().map(score).collect();
            let total: f64 = scores.iter().sum();
            for (score, value) in scores.iter().zip(values) {
                for index in part.clone() {
                    context[index] += score / total * value[index];
                }
            }
        }
    }
    context
}

/// One sequence's vector.
pub(super) fn vector(model: &Model, ids: &[u32], types: &[u8]) -> Vec<f64> {
    let Source::Folder(folder) = &model.source else { unreachable!("samples are folders") };
    let weights = Weights::open(folder).expect("a sample's weights can be opened");
    let parameters = Parameters::resolve(&weights, model).expect("a sample's weights fit its configuration");
    let geometry = model.geometry.as_ref().expect("a folder has a geometry");
    let mut hidden = embeddings(&parameters, geometry, ids, types);
    for layer in &parameters.layers {
        let each = |linear_layer: &Linear<'_>| hidden.iter().map(|row| linear(row, linear_layer)).collect::<Rows>();
        let context = attention(&each(&layer.query), &each(&layer.key), &each(&layer.value), geometry.heads);
        for (row, context) in hidden.iter_mut().zip(context) {
            let attended = sum(row, &linear(&context, &layer.attention_output));
            let attended = norm(&attended, &layer.attention_norm, geometry.layer_norm_eps);
            let inner: Vec<f64> =
                linear(&attended, &layer.intermediate).iter().map(|&x| activate(x, geometry.activation)).collect();
            *row = norm(&sum(&attended, &linear(&inner, &layer.output)), &layer.output_norm, geometry.layer_norm_eps);
        }
    }
    match &parameters.head {
        HeadParameters::Classifier { dense, output } => {
            let transformed: Vec<f64> = linear(&hidden[0], dense).iter().map(|x| x.tanh()).collect();
            linear(&transformed, output)
        }
        HeadParameters::Embedding => {
            let pooled = match model.pooling {
                Pooling::Cls => hidden[0].clone(),
                Pooling::Mean => {
                    let total = hidden[1..].iter().fold(hidden[0].clone(), |total, row| sum(&total, row));
                    total.iter().map(|x| x / hidden.len() as f64).collect()
                }
            };
            let length = if model.normalize { pooled.iter().map(|x| x * x).sum::<f64>().sqrt() } else { 1.0 };
            pooled.iter().map(|x| x / length).collect()
        }
    }
}
