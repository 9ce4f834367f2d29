//! The part of Python's pickle format that a PyTorch state dict is written in.
//!
//! A pickle is a program for a stack machine that can call any function of Python. This reader runs the instructions
//! that build data and knows the few calls that make tensors; everything else, by name, is an error. It executes
//! nothing.
//!
//! Invariants: one pass, each instruction pushes at most one value and memory stays proportional to the input; values
//! are indices into an arena rather than trees of pointers, so that no nesting can overflow the machine's own stack,
//! whether in reading or in dropping. Bad input is an `Err` with the position, never a panic.

use std::collections::HashMap;

/// Arguments of a call and dimensions of a tensor at most; a state dict has 7 and 2. Without a bound, recalling one
/// long list over and over would take memory in the square of the input.
const ITEMS_MAX: usize = 16;

/// A tensor of the state dict: a strided view of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View<'a> {
    /// The storage's key: its member of the archive is `data/KEY`.
    pub storage: &'a str,
    /// `FloatStorage` and the like, without its module.
    pub storage_class: &'a str,
    /// In elements.
    pub offset: usize,
    pub shape: Vec<usize>,
    /// In elements, one per dimension.
    pub strides: Vec<usize>,
}

/// What the machine's stack holds. Containers live in [`Machine`]'s arenas.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value<'a> {
    None,
    Bool,
    Integer(i64),
    Float,
    Text(&'a str),
    /// Where a list of arguments or items begins.
    Mark,
    Sequence(usize),
    Dict(usize),
    Global(Global<'a>),
    Storage(usize),
    Tensor(usize),
}

/// The only names that a state dict may refer to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Global<'a> {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(&'a str),
}

#[derive(Debug)]
struct Machine<'a> {
    bytes: &'a [u8],
    position: usize,
    stack: Vec<Value<'a>>,
    memo: HashMap<u32, Value<'a>>,
    sequences: Vec<Vec<Value<'a>>>,
    dicts: Vec<Vec<(Value<'a>, Value<'a>)>>,
    storages: Vec<(&'a str, &'a str)>,
    tensors: Vec<View<'a>>,
}

/// Names and views of a pickled state dict, in its order.
///
/// A dict that holds the state dict under `state_dict` or `model` among other things is a training checkpoint; it is an
/// error here, as is anything else that is not a tensor.
pub(super) fn state_dict(bytes: &[u8]) -> Result<Vec<(&str, View<'_>)>, String> {
    let mut machine = Machine {
        bytes,
        position: 0,
        stack: Vec::new(),
        memo: HashMap::new(),
        sequences: Vec::new(),
        dicts: Vec::new(),
        storages: Vec::new(),
        tensors: Vec::new(),
    };
    let top = machine.run().map_err(|words| format!("at byte {}: {words}", machine.position))?;
    let Value::Dict(dict) = top else {
        return Err("not a state dict".into());
    };
    let mut found = Vec::with_capacity(machine.dicts[dict].len());
    for (key, value) in &machine.dicts[dict] {
        let (Value::Text(name), Value::Tensor(tensor)) = (key, value) else {
            return Err(format!("not a state dict: under {key:?} there is no tensor"));
        };
        found.push((*name, machine.tensors[*tensor].clone()));
    }
    Ok(found)
}

impl<'a> Machine<'a> {
    fn run(&mut self) -> Result<Value<'a>, String> {
        loop {
            match self.byte()? {
                b'.' => return self.pop(),
                code => self.instruction(code)?,
            }
        }
    }

    /// One instruction, by the names that Python's `pickletools` gives them.
    fn instruction(&mut self, code: u8) -> Result<(), String> {
        match code {
            0x80 => self.skip(1),                                                                    // PROTO
            0x95 => self.skip(8),                                                                    // FRAME
            b'N' => self.push(Value::None),                                                          // NONE
            0x88 | 0x89 => self.push(Value::Bool), // NEWTRUE, NEWFALSE
            b'J' => self.array().map(i32::from_le_bytes).and_then(|n| self.integer(n.into())), // BININT
            b'K' => self.byte().and_then(|n| self.integer(n.into())), // BININT1
            b'M' => self.array().map(u16::from_le_bytes).and_then(|n| self.integer(n.into())), // BININT2
            0x8a => self.long(),                   // LONG1
            b'G' => self.skip(8).and_then(|()| self.push(Value::Float)), // BINFLOAT
            b'X' | b'T' => self.array().map(u32::from_le_bytes).and_then(|n| self.text(n as usize)), // BINUNICODE, BINSTRING
            0x8c | b'U' => self.byte().and_then(|n| self.text(n.into())), // SHORT_BINUNICODE, SHORT_BINSTRING
            b'(' => self.push(Value::Mark),                               // MARK
            b')' | b']' => self.sequence(Vec::new()),                     // EMPTY_TUPLE, EMPTY_LIST
            b'}' => self.dict(),                                          // EMPTY_DICT
            b't' => self.pop_to_mark().and_then(|items| self.sequence(items)), // TUPLE
            0x85..=0x87 => self.pop_many(usize::from(code - 0x84)).and_then(|items| self.sequence(items)), // TUPLE1 to 3
            b's' => self.pop_many(2).and_then(|items| self.set_items(&items)),                             // SETITEM
            b'u' => self.pop_to_mark().and_then(|items| self.set_items(&items)),                           // SETITEMS
            b'a' => self.pop_many(1).and_then(|items| self.append(items)),                                 // APPEND
            b'e' => self.pop_to_mark().and_then(|items| self.append(items)),                               // APPENDS
            b'q' => self.byte().and_then(|key| self.remember(key.into())),                                 // BINPUT
            b'r' => self.array().map(u32::from_le_bytes).and_then(|key| self.remember(key)), // LONG_BINPUT
            0x94 => self.remember(self.memo.len() as u32),                                   // MEMOIZE
            b'h' => self.byte().and_then(|key| self.recall(key.into())),                     // BINGET
            b'j' => self.array().map(u32::from_le_bytes).and_then(|key| self.recall(key)),   // LONG_BINGET
            b'c' => self.global(),                                                           // GLOBAL
            0x93 => self.stack_global(),                                                     // STACK_GLOBAL
            b'Q' => self.storage(),                                                          // BINPERSID
            b'R' => self.call(),                                                             // REDUCE
            b'b' => self.pop().map(drop), // BUILD: `_metadata` of the dict
            other => Err(format!("instruction {other:#04x} has no place in a state dict")),
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self.position.checked_add(count).ok_or("a length beyond all bounds")?;
        let taken = self.bytes.get(self.position..end).ok_or("the pickle ends too early")?;
        self.position = end;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn array<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], String> {
        let taken = self.take(SIZE)?;
        taken.try_into().map_err(|_| "the pickle ends too early".to_owned())
    }

    fn skip(&mut self, count: usize) -> Result<(), String> {
        self.take(count).map(drop)
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), String> {
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value<'a>, String> {
        self.stack.pop().ok_or_else(|| "the stack is empty".into())
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<Value<'a>>, String> {
        let start = self.stack.len().checked_sub(count).ok_or("the stack is empty")?;
        Ok(self.stack.split_off(start))
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value<'a>>, String> {
        let mark = self.stack.iter().rposition(|value| *value == Value::Mark).ok_or("no mark on the stack")?;
        let items = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(items)
    }

    fn integer(&mut self, value: i64) -> Result<(), String> {
        self.push(Value::Integer(value))
    }

    /// A little-endian two's complement integer of up to eight bytes.
    fn long(&mut self) -> Result<(), String> {
        let count = usize::from(self.byte()?);
        let bytes = self.take(count)?;
        let Some(last) = bytes.last() else {
            return self.integer(0);
        };
        if count > 8 {
            return Err("an integer of more than 64 bits".into());
        }
        let mut wide = [if last & 0x80 == 0 { 0 } else { 0xff }; 8];
        wide[..count].copy_from_slice(bytes);
        self.integer(i64::from_le_bytes(wide))
    }

    fn text(&mut self, length: usize) -> Result<(), String> {
        let bytes = self.take(length)?;
        let text = std::str::from_utf8(bytes).map_err(|_| "a string that is not UTF-8")?;
        self.push(Value::Text(text))
    }

    fn sequence(&mut self, items: Vec<Value<'a>>) -> Result<(), String> {
        self.sequences.push(items);
        self.push(Value::Sequence(self.sequences.len() - 1))
    }

    fn dict(&mut self) -> Result<(), String> {
        self.dicts.push(Vec::new());
        self.push(Value::Dict(self.dicts.len() - 1))
    }

    fn set_items(&mut self, items: &[Value<'a>]) -> Result<(), String> {
        let Some(Value::Dict(dict)) = self.stack.last() else {
            return Err("items for what is not a dict".into());
        };
        let (pairs, []) = items.as_chunks::<2>() else {
            return Err("a key without a value".into());
        };
        self.dicts[*dict].extend(pairs.iter().map(|[key, value]| (*key, *value)));
        Ok(())
    }

    fn append(&mut self, items: Vec<Value<'a>>) -> Result<(), String> {
        let Some(Value::Sequence(sequence)) = self.stack.last() else {
            return Err("items for what is not a list".into());
        };
        self.sequences[*sequence].extend(items);
        Ok(())
    }

    fn remember(&mut self, key: u32) -> Result<(), String> {
        let value = *self.stack.last().ok_or("the stack is empty")?;
        self.memo.insert(key, value);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<(), String> {
        let value = *self.memo.get(&key).ok_or_else(|| format!("nothing remembered under {key}"))?;
        self.push(value)
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let rest = &self.bytes[self.position..];
        let length = rest.iter().position(|&byte| byte == b'\n').ok_or("the pickle ends too early")?;
        let line = self.take(length)?;
        self.skip(1)?;
        std::str::from_utf8(line).map_err(|_| "a name that is not UTF-8".into())
    }

    fn global(&mut self) -> Result<(), String> {
        let (module, name) = (self.line()?, self.line()?);
        self.push_global(module, name)
    }

    fn stack_global(&mut self) -> Result<(), String> {
        match self.pop_many(2)?.as_slice() {
            [Value::Text(module), Value::Text(name)] => self.push_global(module, name),
            other => Err(format!("{other:?} is not the name of a global")),
        }
    }

    fn push_global(&mut self, module: &'a str, name: &'a str) -> Result<(), String> {
        let global = match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Global::RebuildParameter,
            ("torch", name) if name.ends_with("Storage") => Global::Storage(name),
            (module, name) => {
                return Err(format!("`{module}.{name}` has no place in a state dict; nothing was executed"));
            }
        };
        self.push(Value::Global(global))
    }

    /// The persistent id of a storage: `("storage", class, key, device, elements)`.
    fn storage(&mut self) -> Result<(), String> {
        let Value::Sequence(id) = self.pop()? else {
            return Err("a persistent id that is not a tuple".into());
        };
        match self.sequences[id].as_slice() {
            [Value::Text("storage"), Value::Global(Global::Storage(class)), Value::Text(key), ..] => {
                self.storages.push((key, class));
                self.push(Value::Storage(self.storages.len() - 1))
            }
            other => Err(format!("{other:?} is not the id of a storage")),
        }
    }

    fn call(&mut self) -> Result<(), String> {
        let arguments = match self.pop()? {
            Value::Sequence(sequence) if self.sequences[sequence].len() <= ITEMS_MAX => {
                self.sequences[sequence].clone()
            }
            other => return Err(format!("{other:?} are not arguments")),
        };
        match (self.pop()?, arguments.as_slice()) {
            (Value::Global(Global::OrderedDict), []) => self.dict(),
            (Value::Global(Global::RebuildParameter), [tensor @ Value::Tensor(_), ..]) => self.push(*tensor),
            (
                Value::Global(Global::RebuildTensor),
                [Value::Storage(storage), Value::Integer(offset), Value::Sequence(shape), Value::Sequence(strides), ..],
            ) => self.rebuild(*storage, *offset, *shape, *strides),
            (function, arguments) => Err(format!("{function:?} cannot be called with {} arguments", arguments.len())),
        }
    }

    fn rebuild(&mut self, storage: usize, offset: i64, shape: usize, strides: usize) -> Result<(), String> {
        let (key, class) = self.storages[storage];
        let (shape, strides) = (self.counts(shape)?, self.counts(strides)?);
        if shape.len() != strides.len() {
            return Err(format!("shape {shape:?} with strides {strides:?}"));
        }
        let offset = usize::try_from(offset).map_err(|_| "a negative offset")?;
        self.tensors.push(View { storage: key, storage_class: class, offset, shape, strides });
        self.push(Value::Tensor(self.tensors.len() - 1))
    }

    fn counts(&self, sequence: usize) -> Result<Vec<usize>, String> {
        let count = |value: &Value<'_>| match value {
            Value::Integer(count) => usize::try_from(*count).ok(),
            Value::None
            | Value::Bool
            | Value::Float
            | Value::Text(_)
            | Value::Mark
            | Value::Sequence(_)
            | Value::Dict(_)
            | Value::Global(_)
            | Value::Storage(_)
            | Value::Tensor(_) => None,
        };
        if self.sequences[sequence].len() > ITEMS_MAX {
            return Err(format!("a tensor of more than {ITEMS_MAX} dimensions"));
        }
        self.sequences[sequence].iter().map(count).collect::<Option<_>>().ok_or_else(|| "a shape of no integers".into())
    }
}
