//! Typed areas: [`PerCpu`], a value for each CPU.

use super::{Handle, Problem};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Types whose bytes are the whole value: they can be zero, copied word by word, and shared by threads.
///
/// # Safety
/// Every pattern of bytes is a value, there are no padding bytes, no pointers that are followed, and
/// nothing to drop.
pub unsafe trait PlainData: Copy + Send + 'static {}

macro_rules! plain {
    ($($type:ty)*) => {
        $(
            // SAFETY: integers and floating-point numbers.
            unsafe impl PlainData for $type {}
        )*
    };
}
plain! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 }

// SAFETY: arrays have no padding beside that of their elements.
unsafe impl<T: PlainData, const N: usize> PlainData for [T; N] {}

/// A `T` for each CPU, zero at first.
///
/// ```
/// let hits = ebbtide::percpu::PerCpu::<[u64; 4]>::new().unwrap();
/// hits.add(2, 5);
/// assert_eq!(hits.sum(2), 5);
/// ```
#[derive(Debug)]
pub struct PerCpu<T: PlainData> {
    handle: Handle,
    data: PhantomData<T>,
}

// SAFETY: all access is by sections, atomic instructions, or pointers whose users are responsible for it.
unsafe impl<T: PlainData> Send for PerCpu<T> {}
// SAFETY: as above.
unsafe impl<T: PlainData> Sync for PerCpu<T> {}

impl<T: PlainData> PerCpu<T> {
    /// An area of its own.
    ///
    /// # Errors
    /// No memory; or `T` has no size, is larger than a unit, or aligned to more than a page.
    pub fn new() -> Result<Self, Problem> {
        super::allocate(size_of::<T>(), align_of::<T>()).map(|handle| Self {
            handle,
            data: PhantomData,
        })
    }

    /// The copy of `cpu`. Its words may be changing: use it through atomics, or know which threads write.
    ///
    /// # Panics
    /// Ends the process if there is no such CPU: they are below [`super::cpus`].
    pub fn pointer(&self, cpu: usize) -> *mut T {
        super::pointer(self.handle, cpu).cast()
    }

    /// The value of `cpu`, read word by word: each word is whole; the words may be of different moments.
    pub fn read(&self, cpu: usize) -> T {
        let from = self.pointer(cpu) as usize;
        let mut value = MaybeUninit::<T>::uninit();
        let to = value.as_mut_ptr().cast::<u8>();
        let words = size_of::<T>() / 8 * 8;
        // SAFETY: the area belongs to this value while it lives, is aligned to 8 bytes, and was zeroed at first.
        // `to` has room for all words, and every pattern of bytes is a `T`.
        unsafe {
            for at in (0..words).step_by(8) {
                let word = (*((from + at) as *const AtomicU64)).load(Ordering::Relaxed);
                to.add(at).cast::<u64>().write_unaligned(word);
            }
            for at in words..size_of::<T>() {
                to.add(at)
                    .write((*((from + at) as *const AtomicU8)).load(Ordering::Relaxed));
            }
            value.assume_init()
        }
    }

    /// Sets the value of `cpu`, word by word. Concurrent additions may be lost.
    pub fn write(&self, cpu: usize, value: T) {
        let to = self.pointer(cpu) as usize;
        let from = (&raw const value).cast::<u8>();
        let words = size_of::<T>() / 8 * 8;
        // SAFETY: as in `read`; a `T` has no padding.
        unsafe {
            for at in (0..words).step_by(8) {
                let word = from.add(at).cast::<u64>().read_unaligned();
                (*((to + at) as *const AtomicU64)).store(word, Ordering::Relaxed);
            }
            for at in words..size_of::<T>() {
                let byte = from.add(at).read();
                (*((to + at) as *const AtomicU8)).store(byte, Ordering::Relaxed);
            }
        }
    }
}

impl<const N: usize> PerCpu<[u64; N]> {
    /// Adds to this CPU's element, wrapping.
    ///
    /// # Panics
    /// Ends the process if there is no such element.
    #[inline]
    pub fn add(&self, index: usize, value: u64) {
        // SAFETY: the area is allocated while `self` lives.
        unsafe { super::add(self.handle, index.wrapping_mul(8), value) }
    }

    /// The sum of an element over all CPUs, wrapping.
    ///
    /// # Panics
    /// As [`Self::add`].
    pub fn sum(&self, index: usize) -> u64 {
        // SAFETY: as in `add`.
        unsafe { super::sum(self.handle, index.wrapping_mul(8)) }
    }
}

impl<T: PlainData> Drop for PerCpu<T> {
    fn drop(&mut self) {
        super::free(self.handle);
    }
}
