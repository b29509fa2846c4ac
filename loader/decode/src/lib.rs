//! Record to tensor: images, numbers, arrays and text, decoded into batch memory.
