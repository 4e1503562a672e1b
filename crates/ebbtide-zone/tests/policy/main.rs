//! Single rules: what is chosen, what is refused, what a frozen zone does.

#![allow(unexpected_cfgs)]
#![cfg(not(loom))]

mod choice;
mod claims;
mod frozen;
mod misuse;
mod storage;
