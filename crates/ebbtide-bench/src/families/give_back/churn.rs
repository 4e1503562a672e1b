//! The measured process that always has something to give back.

use crate::measured::{Output, Random, alloc, release, timed};

/// Frees or makes objects of 64 bytes to 16 KiB at random: half of 32,768 places hold one, and which sizes are
/// in demand changes, so that there is always something to give back.
pub fn churn(count: u64) -> Output {
    const PLACES: usize = 32_768;
    const PHASE: u64 = 1 << 17;
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut places = vec![std::ptr::null_mut::<u8>(); PLACES];
    let mut done = 0u64;
    let output = timed("ns_per_pair", count, |each| {
        let mut sum = 0u64;
        for _ in 0..each {
            let draw = random.next();
            let place = &mut places[(draw >> 40) as usize % PLACES];
            if place.is_null() {
                let shift = (draw >> 8) % 5 + done / PHASE % 5;
                *place = alloc((64 << shift) - (draw & 31) as usize);
                // SAFETY: the object has more than 32 bytes.
                unsafe { place.write_volatile(draw as u8) };
            } else {
                // SAFETY: a live object, forgotten below.
                unsafe {
                    sum = sum.wrapping_add(1 + u64::from(place.read_volatile()));
                    release(*place);
                }
                *place = std::ptr::null_mut();
            }
            done += 1;
        }
        sum
    });
    for place in places {
        // SAFETY: live or null, and the vector is gone after this.
        unsafe { release(place) };
    }
    output
}
