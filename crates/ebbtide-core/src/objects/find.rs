//! Finds which kind of allocation an address is, without a lock.

use crate::base::message::Message;
use crate::base::size_class::MIN_ALIGN;
use crate::objects::Objects;
use crate::pages::region::LARGE;
use core::sync::atomic::Ordering;
use ebbtide_zone::FRAME_BYTES;

/// The kind of allocation at an address.
pub enum Allocation {
    /// An object of this class.
    Object(usize),
    /// A large allocation that begins at this frame.
    Large(ebbtide_zone::Frame),
    /// Memory of the reserve.
    Reserve,
    /// A place in a slot for guarded objects.
    Guarded,
    /// An address without memory ([`crate::objects::harden::empty`]).
    Empty,
    /// No allocation.
    None,
}

impl Objects {
    /// The kind of allocation at `address`. Takes no lock.
    #[inline]
    pub fn find(&self, address: usize) -> Allocation {
        let region = self.region();
        if region.contains(address) && address.is_multiple_of(MIN_ALIGN) {
            let frame = region.frame(address);
            // SAFETY: inside the region.
            match unsafe { region.class_of(frame) }.load(Ordering::Acquire) {
                LARGE if address.is_multiple_of(FRAME_BYTES) => return Allocation::Large(frame),
                0 | LARGE => {}
                class => return Allocation::Object(class as usize),
            }
        }
        if self.reserve.contains(address) {
            Allocation::Reserve
        } else if self.empties.contains(address) {
            Allocation::Empty
        } else if self.guarded.contains(address) {
            Allocation::Guarded
        } else {
            Allocation::None
        }
    }

    /// Ends the process over a pointer that is no allocation, with a message that describes the address.
    #[cold]
    pub fn mistaken(&self, address: usize, what: &str) -> ! {
        let why = if !self.region().contains(address) {
            ", which is not from this allocator"
        } else if !address.is_multiple_of(MIN_ALIGN) {
            ", which is not aligned to 16 bytes and so no allocation"
        } else {
            ", where nothing is allocated: freed already, or inside a large allocation"
        };
        Message::new().text(what).address(address).text(why).abort()
    }
}
