//! The return addresses on the own stack: unwind tables where they are found without a lock, else frame pointers.
//!
//! `malloc` may be called under any lock of the loader, so this asks nothing that takes one. Tables are found in this library and in the
//! program, whose program headers are known, and by glibc's `_dl_find_object` (2.35) in everything else. `gimli` reads them. It is not libgcc's
//! unwinder: that takes a lock and allocates where the program has registered tables, and had to be loaded first.
//!
//! Tables and frame pointers may be wrong. So all memory beyond the frames of this library is read by a system call
//! ([`vm::peek`]), which returns an error where a load would be a fault.

mod image;
mod processor;
mod rules;

use crate::features::READ_STACK;
use crate::libc_symbols;
use crate::vm;
use ebbtide_interface::profile::Unwinder;
use gimli::{
    CfaRule, EndianSlice, Evaluation, EvaluationResult, EvaluationStorage, NativeEndian, Piece,
    Register, RegisterRule, UnwindContext, UnwindContextStorage, UnwindExpression, UnwindTableRow,
    Value,
};
use image::Tables;
pub use processor::Registers;
use processor::{COUNT, FRAME, RETURN, STACK, address_of};
use rules::Rule;
pub use rules::forget;

type Bytes = EndianSlice<'static, NativeEndian>;

/// Most registers with a rule in a row: those that calls preserve, or all of a signal frame.
const MOST_RULES: usize = 26;
/// The row, that of the beginning of a function, and one that is remembered.
const MOST_ROWS: usize = 3;
/// Most values on the stack of an expression. Compilers make at most three.
const MOST_VALUES: usize = 8;

struct OnStack;

impl UnwindContextStorage<usize> for OnStack {
    type Rules = [(Register, RegisterRule<usize>); MOST_RULES];
    type Stack = [UnwindTableRow<usize, Self>; MOST_ROWS];
}

impl EvaluationStorage<Bytes> for OnStack {
    type Stack = [Value; MOST_VALUES];
    type ExpressionStack = [(Bytes, Bytes); 1];
    type Result = [Piece<Bytes>; 1];
}

/// How this process's stacks are found.
pub fn unwinder() -> Unwinder {
    if !READ_STACK.may_work() {
        Unwinder::None
    } else if libc_symbols::find_object().is_null() {
        Unwinder::FramePointers
    } else {
        Unwinder::Tables
    }
}

/// Fills `frames` with return addresses, the innermost first, and returns their number. Those into this library are left out, if it is
/// not part of the program. `thread` is the number of the calling thread.
pub fn frames(start: &Registers, thread: u32, frames: &mut [u64]) -> usize {
    let found = walk(start, thread, frames, true);
    found.unwrap_or_else(|| walk(start, thread, frames, false).unwrap_or(0))
}

/// As [`frames`]. `None`: with known rules it does not go on, because a register is needed that these do not restore, or the kernel does not read
/// a frame of this library.
fn walk(start: &Registers, thread: u32, frames: &mut [u64], uses_rules: bool) -> Option<usize> {
    let mut walk = Walk {
        registers: *start,
        is_call: false,
        window: Window::new(thread),
        uses_rules,
        is_partial: false,
        needs_tables: false,
    };
    let own = image::own();
    let is_own = |pc| own.is_some_and(|own| own.has(pc));
    let is_part = is_own(image::program_headers());
    let mut count = 0;
    while count < frames.len() {
        let inside = is_own(walk.registers.pc());
        walk.window.is_trusted = inside && (!is_part || count == 0);
        if walk.step().is_none() {
            break;
        }
        if walk.needs_tables {
            return None;
        }
        let pc = walk.registers.pc();
        if !is_own(pc) || is_part {
            frames[count] = pc as u64;
            count += 1;
        }
        if !READ_STACK.may_work() && count > 0 {
            break;
        }
    }
    (!walk.needs_tables).then_some(count)
}

/// A thread's registers at a place of its stack.
struct Walk {
    registers: Registers,
    /// The address is a return address: the call lies before it.
    is_call: bool,
    window: Window,
    /// Rules that were kept serve.
    uses_rules: bool,
    /// Only the registers of a [`Rule`] are those of this frame.
    is_partial: bool,
    /// Kept rules do not lead on.
    needs_tables: bool,
}

/// What a step finds.
#[allow(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one step; some processors have many registers"
)]
enum Step {
    /// The caller.
    Caller(Registers, bool),
    /// The tables say that there is none.
    Outermost,
    /// There are no tables for this address, or they are no use.
    Unknown,
}

impl Walk {
    /// Goes to the caller.
    fn step(&mut self) -> Option<()> {
        let (mut caller, is_signal) = match self.by_tables() {
            Step::Caller(caller, is_signal) => (caller, is_signal),
            Step::Outermost => return None,
            Step::Unknown => (self.by_frame_pointer()?, false),
        };
        caller.strip();
        // A signal may have come on another stack.
        let goes_up = is_signal || caller.get(STACK) > self.registers.get(STACK);
        if !goes_up || caller.pc() == 0 {
            return None;
        }
        self.registers = caller;
        self.is_call = !is_signal;
        Some(())
    }

    fn by_tables(&mut self) -> Step {
        let pc = self.registers.pc() - usize::from(self.is_call);
        if self.uses_rules
            && let Some(rule) = rules::find(pc)
        {
            // A kept rule is not certain enough to read where it leads to: the kernel reads.
            let was_trusted = core::mem::take(&mut self.window.is_trusted);
            let step = self.by_rule(rule).unwrap_or(Step::Unknown);
            // Where the kernel does not read, the tables know the frames of this library.
            self.needs_tables |= was_trusted && matches!(step, Step::Unknown);
            return step;
        }
        let Some(tables) = image::of(pc).and_then(|image| image.tables()) else {
            return Step::Unknown;
        };
        self.by_rules(&tables, pc).unwrap_or(Step::Unknown)
    }

    /// By a rule that was kept.
    fn by_rule(&mut self, rule: Rule) -> gimli::Result<Step> {
        let Rule::Plain {
            register,
            offset,
            return_at,
            frame_at,
        } = rule
        else {
            return Ok(Step::Outermost);
        };
        self.is_partial = true;
        let cfa = self.registers.get(register).wrapping_add(offset as usize);
        let mut caller = self.registers;
        caller.set(STACK, cfa);
        if let Some(at) = frame_at {
            caller.set(FRAME, self.read(cfa.wrapping_add_signed(at.into()))?);
        }
        caller.set(
            RETURN,
            self.read(cfa.wrapping_add_signed(return_at.into()))?,
        );
        caller.return_to(RETURN);
        Ok(Step::Caller(caller, false))
    }

    #[inline(never)]
    fn by_rules(&mut self, tables: &Tables, pc: usize) -> gimli::Result<Step> {
        let (frames, bases) = (&tables.frames, &tables.bases);
        let entry = tables.entry(pc)?;
        let mut context = UnwindContext::<usize, OnStack>::new_in();
        let row = entry.unwind_info_for_address(frames, bases, &mut context, pc as u64)?;
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                let base = self.value(*register)?;
                base.wrapping_add_signed(*offset as isize)
            }
            CfaRule::Expression(expression) => self.evaluate(tables, expression, None)?,
        };
        let mut caller = self.registers;
        caller.set(STACK, cfa);
        let mut plain = Plain::of(row.cfa());
        for (register, rule) in row.registers() {
            let place = usize::from(register.0);
            if place >= COUNT {
                continue;
            }
            plain.add(place, rule);
            let value = match rule {
                // The program's first frame, and that of a thread.
                RegisterRule::Undefined if place == RETURN => {
                    rules::keep(pc, Rule::Outermost);
                    return Ok(Step::Outermost);
                }
                RegisterRule::Offset(offset) => {
                    self.read(cfa.wrapping_add_signed(*offset as isize))?
                }
                RegisterRule::ValOffset(offset) => cfa.wrapping_add_signed(*offset as isize),
                RegisterRule::Register(other) => self.value(*other)?,
                RegisterRule::Expression(expression) => {
                    let address = self.evaluate(tables, expression, Some(cfa))?;
                    self.read(address)?
                }
                RegisterRule::ValExpression(expression) => {
                    self.evaluate(tables, expression, Some(cfa))?
                }
                _ => continue,
            };
            caller.set(place, value);
        }
        caller.return_to(RETURN);
        let is_signal = entry.is_signal_trampoline();
        // A signal frame has all registers.
        self.is_partial &= !is_signal;
        if let Some(rule) = plain.rule().filter(|_| !is_signal) {
            rules::keep(pc, rule);
        }
        Ok(Step::Caller(caller, is_signal))
    }

    fn value(&mut self, register: Register) -> gimli::Result<usize> {
        let place = usize::from(register.0);
        if self.is_partial && ![FRAME, STACK, RETURN].contains(&place) {
            self.needs_tables = true;
        } else if place < COUNT {
            return Ok(self.registers.get(place));
        }
        Err(gimli::Error::UnsupportedEvaluation)
    }

    fn read(&mut self, address: usize) -> gimli::Result<usize> {
        self.window
            .read(address)
            .ok_or(gimli::Error::OffsetOutOfBounds(address as u64))
    }

    #[cold]
    fn evaluate(
        &mut self,
        tables: &Tables,
        expression: &UnwindExpression<usize>,
        initial: Option<usize>,
    ) -> gimli::Result<usize> {
        let bytes = expression.get(&tables.frames)?.0;
        let mut evaluation = Evaluation::<_, OnStack>::new_in(bytes, tables.encoding());
        evaluation.set_max_iterations(100);
        if let Some(initial) = initial {
            evaluation.set_initial_value(initial as u64);
        }
        let mut result = evaluation.evaluate()?;
        loop {
            result = match result {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = self.value(register)?;
                    evaluation.resume_with_register(Value::Generic(value as u64))?
                }
                EvaluationResult::RequiresMemory {
                    address, size: 8, ..
                } => {
                    let value = self.read(address as usize)?;
                    evaluation.resume_with_memory(Value::Generic(value as u64))?
                }
                _ => return Err(gimli::Error::UnsupportedEvaluation),
            };
        }
        match evaluation.as_result() {
            [Piece { location, .. }] => address_of(location),
            _ => None,
        }
        .ok_or(gimli::Error::UnsupportedEvaluation)
    }

    /// Both processors keep the caller's frame pointer and the return address side by side.
    fn by_frame_pointer(&mut self) -> Option<Registers> {
        let frame = self.registers.get(FRAME);
        if frame < self.registers.get(STACK) {
            return None;
        }
        let mut caller = self.registers;
        caller.set(FRAME, self.window.read(frame)?);
        caller.set_pc(self.window.read(frame + 8)?);
        caller.set(STACK, frame + 16);
        Some(caller)
    }
}

/// A row of a table that may be a [`Rule`].
struct Plain {
    /// The register and the offset of the caller's stack pointer.
    cfa: Option<(usize, u32)>,
    return_at: Option<i16>,
    frame_at: Option<i16>,
    /// A rule of these two is not an offset.
    is_other: bool,
}

impl Plain {
    fn of(cfa: &CfaRule<usize>) -> Self {
        let cfa = match cfa {
            CfaRule::RegisterAndOffset { register, offset } => u32::try_from(*offset)
                .ok()
                .map(|offset| (usize::from(register.0), offset)),
            CfaRule::Expression(_) => None,
        };
        Self {
            cfa,
            return_at: None,
            frame_at: None,
            is_other: false,
        }
    }

    fn add(&mut self, place: usize, rule: &RegisterRule<usize>) {
        let at = match place {
            RETURN => &mut self.return_at,
            FRAME => &mut self.frame_at,
            _ => return,
        };
        match rule {
            RegisterRule::Offset(offset) => {
                *at = i16::try_from(*offset).ok();
                self.is_other |= at.is_none();
            }
            RegisterRule::SameValue => {}
            _ => self.is_other = true,
        }
    }

    fn rule(self) -> Option<Rule> {
        let (register, offset) = self.cfa.filter(|_| !self.is_other)?;
        Some(Rule::Plain {
            register,
            offset,
            return_at: self.return_at?,
            frame_at: self.frame_at,
        })
    }
}

/// Words of a part of the stack.
const WINDOW_WORDS: usize = 256;

/// Below the first word that is read of a frame, in bytes: words of the same frame that are read next.
const BELOW_BYTES: usize = 8 * 8;

/// A copy of a part of the stack.
struct Window {
    thread: u32,
    start: usize,
    bytes: usize,
    words: [u64; WINDOW_WORDS],
    /// The frame is this library's: it is read where it is.
    is_trusted: bool,
}

impl Window {
    fn new(thread: u32) -> Self {
        Self {
            thread,
            start: 0,
            bytes: 0,
            words: [0; WINDOW_WORDS],
            is_trusted: false,
        }
    }

    fn read(&mut self, address: usize) -> Option<usize> {
        if !address.is_multiple_of(8) {
            return None;
        }
        if self.is_trusted {
            // SAFETY: a word of a frame of this library, at a place that its own tables name.
            return Some(unsafe { (address as *const usize).read_volatile() });
        }
        let at = address.wrapping_sub(self.start);
        if at >= self.bytes {
            self.fill(address)?;
        }
        let at = address.wrapping_sub(self.start);
        (at < self.bytes).then(|| self.words[at / 8] as usize)
    }

    fn fill(&mut self, address: usize) -> Option<()> {
        let page = address / vm::SMALLEST_PAGE * vm::SMALLEST_PAGE;
        self.start = page.max(address.saturating_sub(BELOW_BYTES));
        let rest = (page + vm::SMALLEST_PAGE - self.start) / 8;
        // The next page may be no memory. The kernel then copies up to it, or nothing.
        [WINDOW_WORDS, rest.min(WINDOW_WORDS)]
            .into_iter()
            .any(|words| self.peek(words))
            .then_some(())
    }

    fn peek(&mut self, words: usize) -> bool {
        if !READ_STACK.may_work() {
            return false;
        }
        self.bytes = match vm::peek(self.thread, self.start, &mut self.words[..words]) {
            Ok(bytes) => bytes / 8 * 8,
            Err(crate::Errno::EFAULT) => 0,
            refused => READ_STACK.latch(refused).unwrap_or(0),
        };
        self.bytes > 0
    }
}
