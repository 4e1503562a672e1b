//! The registers that a stack is unwound with, by their numbers in the tables.

use core::arch::asm;
use gimli::{EndianSlice, Location, NativeEndian, Value};

#[cfg(target_arch = "x86_64")]
mod numbers {
    /// Sixteen registers and the return address.
    pub const COUNT: usize = 17;
    pub const FRAME: usize = 6;
    pub const STACK: usize = 7;
    pub const RETURN: usize = 16;
}

#[cfg(not(target_arch = "x86_64"))]
mod numbers {
    /// `x0` to `x30`, and the stack pointer.
    pub const COUNT: usize = 32;
    pub const FRAME: usize = 29;
    pub const STACK: usize = 31;
    pub const RETURN: usize = 30;
}

pub(super) use numbers::{COUNT, FRAME, RETURN, STACK};

/// The registers of a thread.
#[derive(Clone, Copy)]
pub struct Registers {
    values: [usize; COUNT],
    pc: usize,
}

impl Registers {
    /// Those of the calling function that its callees preserve.
    #[inline(always)]
    pub fn here() -> Self {
        let mut values = [0; COUNT];
        let pc: usize;
        // SAFETY: only stores to `values`.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!(
                "mov [{values} + 3 * 8], rbx",
                "mov [{values} + 6 * 8], rbp",
                "mov [{values} + 7 * 8], rsp",
                "mov [{values} + 12 * 8], r12",
                "mov [{values} + 13 * 8], r13",
                "mov [{values} + 14 * 8], r14",
                "mov [{values} + 15 * 8], r15",
                "lea {pc}, [rip]",
                values = in(reg) values.as_mut_ptr(),
                pc = out(reg) pc,
                options(nostack, preserves_flags),
            );
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!(
                "stp x19, x20, [{values}, 19 * 8]",
                "stp x21, x22, [{values}, 21 * 8]",
                "stp x23, x24, [{values}, 23 * 8]",
                "stp x25, x26, [{values}, 25 * 8]",
                "stp x27, x28, [{values}, 27 * 8]",
                "stp x29, x30, [{values}, 29 * 8]",
                "mov {pc}, sp",
                "str {pc}, [{values}, 31 * 8]",
                "adr {pc}, .",
                values = in(reg) values.as_mut_ptr(),
                pc = out(reg) pc,
                options(nostack, preserves_flags),
            );
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            pc = 0;
        }
        Self { values, pc }
    }

    pub(super) fn get(&self, number: usize) -> usize {
        self.values[number]
    }

    pub(super) fn set(&mut self, number: usize, value: usize) {
        self.values[number] = value;
    }

    pub(super) fn pc(&self) -> usize {
        self.pc
    }

    pub(super) fn set_pc(&mut self, pc: usize) {
        self.pc = pc;
    }

    /// The return address is in this register.
    pub(super) fn return_to(&mut self, register: usize) {
        self.pc = self.values[register];
    }

    /// Removes the signature that aarch64 may put into a return address.
    pub(super) fn strip(&mut self) {
        #[cfg(target_arch = "aarch64")]
        // SAFETY: `xpaclri`, which is a no-op on processors without signatures.
        unsafe {
            asm!("hint 7", inout("x30") self.pc, options(nomem, nostack, preserves_flags));
        }
    }
}

/// The result of an expression as an address.
pub(super) fn address_of(location: &Location<EndianSlice<'static, NativeEndian>>) -> Option<usize> {
    match location {
        Location::Address { address } => Some(*address as usize),
        Location::Value {
            value: Value::Generic(value),
        } => Some(*value as usize),
        _ => None,
    }
}
