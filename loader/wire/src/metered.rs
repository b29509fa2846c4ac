//! Decoding of messages within a bound on the memory of the result.
//!
//! A byte on the wire may become many in memory: an empty string in a list takes one byte there and
//! 24 here. So each list and each text of a message is charged for the memory it takes, while it
//! grows, to a meter that may refuse.

use std::fmt;

use forebay_error::{Error, Result};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

/// Elements for which a growing list first takes memory.
const FIRST_ELEMENTS: usize = 4;

/// Room in a map's nodes for each entry: they are half full at least.
const MAP_ROOM: usize = 2;

/// Meter of the memory that a message takes.
struct Meter<'c> {
    charge: &'c mut dyn FnMut(usize) -> Result<()>,
    refused: Option<Error>,
}

impl Meter<'_> {
    fn charge<E: de::Error>(&mut self, bytes: usize) -> std::result::Result<(), E> {
        (self.charge)(bytes).map_err(|error| {
            self.refused = Some(error);
            E::custom("the message takes too much memory")
        })
    }
}

/// Decodes a message; `charge` is called for its memory before it is taken, and may refuse.
///
/// # Errors
/// The refusal of `charge`, or what is wrong with the message.
pub(crate) fn decode<T: DeserializeOwned>(
    body: &[u8],
    charge: &mut dyn FnMut(usize) -> Result<()>,
) -> std::result::Result<T, Wrong> {
    let mut meter = Meter { charge, refused: None };
    let mut decoder = postcard::Deserializer::from_bytes(body);
    let decoded = T::deserialize(Metered { inner: &mut decoder, meter: &mut meter });
    decoded.map_err(|error| match meter.refused {
        Some(refused) => Wrong::Refused(refused),
        None => Wrong::Message(error),
    })
}

/// Reason a message was not decoded.
pub(crate) enum Wrong {
    /// It is no message of this protocol.
    Message(postcard::Error),
    /// It takes too much memory.
    Refused(Error),
}

/// A deserializer, visitor, access or seed whose lists and texts are charged.
struct Metered<'m, 'c, T> {
    inner: T,
    meter: &'m mut Meter<'c>,
}

/// A visitor of a value; `is_list` for one of unknown length.
struct Visiting<'m, 'c, V> {
    inner: V,
    meter: &'m mut Meter<'c>,
    is_list: bool,
}

macro_rules! deserialize {
    ($($method:ident($($argument:ident: $type:ty),*) $is_list:literal;)*) => {
        $(fn $method<V: Visitor<'de>>(
            self,
            $($argument: $type,)*
            visitor: V,
        ) -> std::result::Result<V::Value, D::Error> {
            let visitor = Visiting { inner: visitor, meter: self.meter, is_list: $is_list };
            self.inner.$method($($argument,)* visitor)
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Metered<'_, '_, D> {
    type Error = D::Error;

    deserialize! {
        deserialize_any() false;
        deserialize_bool() false;
        deserialize_i8() false;
        deserialize_i16() false;
        deserialize_i32() false;
        deserialize_i64() false;
        deserialize_u8() false;
        deserialize_u16() false;
        deserialize_u32() false;
        deserialize_u64() false;
        deserialize_f32() false;
        deserialize_f64() false;
        deserialize_char() false;
        deserialize_str() false;
        deserialize_string() false;
        deserialize_bytes() false;
        deserialize_byte_buf() false;
        deserialize_option() false;
        deserialize_unit() false;
        deserialize_unit_struct(name: &'static str) false;
        deserialize_newtype_struct(name: &'static str) false;
        deserialize_seq() true;
        deserialize_tuple(len: usize) false;
        deserialize_tuple_struct(name: &'static str, len: usize) false;
        deserialize_map() true;
        deserialize_struct(name: &'static str, fields: &'static [&'static str]) false;
        deserialize_enum(name: &'static str, variants: &'static [&'static str]) false;
        deserialize_identifier() false;
        deserialize_ignored_any() false;
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! visit {
    ($($method:ident($type:ty);)*) => {
        $(fn $method<E: de::Error>(self, value: $type) -> std::result::Result<V::Value, E> {
            self.inner.$method(value)
        })*
    };
}

macro_rules! visit_charged {
    ($($method:ident($type:ty);)*) => {
        $(fn $method<E: de::Error>(self, value: $type) -> std::result::Result<V::Value, E> {
            self.meter.charge(value.len())?;
            self.inner.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Visiting<'_, '_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    visit! {
        visit_bool(bool);
        visit_i8(i8);
        visit_i16(i16);
        visit_i32(i32);
        visit_i64(i64);
        visit_u8(u8);
        visit_u16(u16);
        visit_u32(u32);
        visit_u64(u64);
        visit_f32(f32);
        visit_f64(f64);
        visit_char(char);
    }

    visit_charged! {
        visit_str(&str);
        visit_borrowed_str(&'de str);
        visit_string(String);
        visit_bytes(&[u8]);
        visit_borrowed_bytes(&'de [u8]);
        visit_byte_buf(Vec<u8>);
    }

    fn visit_none<E: de::Error>(self) -> std::result::Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: de::Error>(self) -> std::result::Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> std::result::Result<V::Value, D::Error> {
        self.inner.visit_some(Metered { inner, meter: self.meter })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        inner: D,
    ) -> std::result::Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Metered { inner, meter: self.meter })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> std::result::Result<V::Value, A::Error> {
        let (room, is_list) = (0, self.is_list);
        self.inner.visit_seq(List { inner, meter: self.meter, len: 0, room, is_list })
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> std::result::Result<V::Value, A::Error> {
        self.inner.visit_map(Metered { inner, meter: self.meter })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> std::result::Result<V::Value, A::Error> {
        self.inner.visit_enum(Metered { inner, meter: self.meter })
    }
}

/// Elements of a list, or fields of a structure, which has room for them.
struct List<'m, 'c, A> {
    inner: A,
    meter: &'m mut Meter<'c>,
    len: usize,
    /// Elements that the list has memory for.
    room: usize,
    is_list: bool,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for List<'_, '_, A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> std::result::Result<Option<T::Value>, A::Error> {
        let element = self.inner.next_element_seed(Metered { inner: seed, meter: self.meter })?;
        if self.is_list && element.is_some() {
            self.len += 1;
            if self.len > self.room {
                let room = (2 * self.room).max(FIRST_ELEMENTS);
                self.meter.charge((room - self.room).saturating_mul(size_of::<T::Value>()))?;
                self.room = room;
            }
        }
        Ok(element)
    }

    /// Tells nothing: a list is to grow by what came, not by what was announced.
    fn size_hint(&self) -> Option<usize> {
        None
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Metered<'_, '_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> std::result::Result<Option<K::Value>, A::Error> {
        let key = self.inner.next_key_seed(Metered { inner: seed, meter: self.meter })?;
        if key.is_some() {
            self.meter.charge(MAP_ROOM * size_of::<K::Value>())?;
        }
        Ok(key)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> std::result::Result<T::Value, A::Error> {
        self.meter.charge(MAP_ROOM * size_of::<T::Value>())?;
        self.inner.next_value_seed(Metered { inner: seed, meter: self.meter })
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Metered<'_, '_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(
        self,
        inner: D,
    ) -> std::result::Result<S::Value, D::Error> {
        self.inner.deserialize(Metered { inner, meter: self.meter })
    }
}

impl<'de, 'm, 'c, A: EnumAccess<'de>> EnumAccess<'de> for Metered<'m, 'c, A> {
    type Error = A::Error;
    type Variant = Metered<'m, 'c, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> std::result::Result<(S::Value, Self::Variant), A::Error> {
        let (value, inner) = self.inner.variant_seed(seed)?;
        Ok((value, Metered { inner, meter: self.meter }))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Metered<'_, '_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> std::result::Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> std::result::Result<S::Value, A::Error> {
        // A boxed variant lies beside its message.
        self.meter.charge(size_of::<S::Value>())?;
        self.inner.newtype_variant_seed(Metered { inner: seed, meter: self.meter })
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> std::result::Result<V::Value, A::Error> {
        let visitor = Visiting { inner: visitor, meter: self.meter, is_list: false };
        self.inner.tuple_variant(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> std::result::Result<V::Value, A::Error> {
        let visitor = Visiting { inner: visitor, meter: self.meter, is_list: false };
        self.inner.struct_variant(fields, visitor)
    }
}
