//! What all layers use. It has no state of the heap.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | the keys of `EBBTIDE_CONF` |
//! | [`countdown`] | chooses the requests that are sampled |
//! | [`domains`] | zones by CPUs and nodes |
//! | [`fast`] | the words that the fast paths read |
//! | [`ranks`] | the one order of locks |
//! | [`releaser`] | the thread that releases memory |
//! | [`message`] | the one line before an abort |
//! | [`size_class`] | requests by size |
//! | [`source`] | the interface of a holder of free memory |
//! | [`stats`] | the statistics, and the page that shows them |

pub mod config;
pub mod countdown;
pub mod domains;
pub mod fast;
pub mod message;
pub mod ranks;
pub mod releaser;
pub mod size_class;
pub mod source;
pub mod stats;
