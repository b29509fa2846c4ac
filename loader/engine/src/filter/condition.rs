//! Conditions, and the samples of a block that meet them.
//!
//! Two values, not three: a comparison with an absent value does not hold, and `not` turns that
//! around as any other answer.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use forebay_shard::members::{Column, Values};

/// A condition on a sample; `C` names columns, by text or by number.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Condition<C = String> {
    /// One of these holds.
    Any(Vec<Self>),
    /// All of these hold.
    All(Vec<Self>),
    /// This does not hold.
    Not(Box<Self>),
    Test(Test<C>),
}

/// A column and what is asked of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Test<C = String> {
    pub(super) column: C,
    /// Byte of the text at which the column is named.
    pub(super) at: usize,
    pub(super) comparison: Comparison,
    /// True for `not in`, `not between` and `is not null`.
    pub(super) is_negated: bool,
}

/// Comparisons; each literal with its byte in the text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Comparison {
    With(Operator, (Literal, usize)),
    In(Vec<(Literal, usize)>),
    /// Both ends belong to it.
    Between((Literal, usize), (Literal, usize)),
    Null,
}

/// A value in a filter.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    Int(i64),
    /// Finite.
    Float(f64),
    Text(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Equals,
    Differs,
    Below,
    AtMost,
    Above,
    AtLeast,
}

impl Operator {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equals => order.is_eq(),
            Self::Differs => order.is_ne(),
            Self::Below => order.is_lt(),
            Self::AtMost => order.is_le(),
            Self::Above => order.is_gt(),
            Self::AtLeast => order.is_ge(),
        }
    }

    /// Returns true if it needs no order of the values.
    pub(super) fn is_equality(self) -> bool {
        matches!(self, Self::Equals | Self::Differs)
    }
}

impl Condition<usize> {
    /// Returns for each sample of a block if it meets the condition.
    pub(super) fn holds(&self, columns: &HashMap<usize, Column>, samples: usize) -> Vec<bool> {
        let fold = |conditions: &[Self], first: bool, join: fn(&mut bool, bool)| {
            let mut all = vec![first; samples];
            for condition in conditions {
                let one = condition.holds(columns, samples);
                all.iter_mut().zip(one).for_each(|(all, one)| join(all, one));
            }
            all
        };
        match self {
            Self::Any(conditions) => fold(conditions, false, |all, one| *all |= one),
            Self::All(conditions) => fold(conditions, true, |all, one| *all &= one),
            Self::Not(condition) => {
                condition.holds(columns, samples).into_iter().map(|holds| !holds).collect()
            }
            Self::Test(test) => test.holds(&columns[&test.column]),
        }
    }
}

impl Test<usize> {
    fn holds(&self, column: &Column) -> Vec<bool> {
        if self.comparison == Comparison::Null {
            // `is not null` holds for those that are present.
            return column.present.iter().map(|present| *present == self.is_negated).collect();
        }
        let mut of_values = self.of_values(&column.values).into_iter();
        let holds = |present: &bool| {
            // An absent value compares with nothing, not even as different.
            *present && of_values.next().unwrap_or(false) != self.is_negated
        };
        column.present.iter().map(holds).collect()
    }

    fn of_values(&self, values: &Values) -> Vec<bool> {
        match values {
            Values::Empty => Vec::new(),
            Values::Ints(values) => {
                let among = self.set(|literal| match literal {
                    Literal::Int(value) => Some(*value),
                    Literal::Float(value) => (value.trunc() == *value)
                        .then_some(*value as i64)
                        .filter(|int| int_with_float(*int, *value).is_eq()),
                    Literal::Text(_) => None,
                });
                self.each(
                    values,
                    |value| among.contains(value),
                    |value, literal| match literal {
                        Literal::Int(other) => Some(value.cmp(other)),
                        Literal::Float(other) => Some(int_with_float(*value, *other)),
                        Literal::Text(_) => None,
                    },
                )
            }
            Values::Floats(values) => {
                let of = |literal: &Literal, value: f64| match literal {
                    Literal::Int(other) => Some(int_with_float(*other, value).reverse()),
                    Literal::Float(other) => value.partial_cmp(other),
                    Literal::Text(_) => None,
                };
                let listed = match &self.comparison {
                    Comparison::In(literals) => literals.as_slice(),
                    _ => &[],
                };
                let among = |value: &f64| {
                    listed.iter().any(|(literal, _)| of(literal, *value) == Some(Ordering::Equal))
                };
                self.each(values, among, |value, literal| of(literal, *value))
            }
            Values::Texts(values) => {
                let among = self.set(|literal| match literal {
                    Literal::Text(text) => Some(text.as_str()),
                    Literal::Int(_) | Literal::Float(_) => None,
                });
                let is_among = |value: &String| among.contains(value.as_str());
                self.each(values, is_among, |value, literal| match literal {
                    Literal::Text(other) => Some(value.cmp(other)),
                    Literal::Int(_) | Literal::Float(_) => None,
                })
            }
        }
    }

    /// Returns the listed values of one kind.
    fn set<'a, T: Eq + std::hash::Hash>(
        &'a self,
        of: impl Fn(&'a Literal) -> Option<T>,
    ) -> HashSet<T> {
        match &self.comparison {
            Comparison::In(literals) => literals.iter().filter_map(|(one, _)| of(one)).collect(),
            _ => HashSet::new(),
        }
    }

    fn each<T>(
        &self,
        values: &[T],
        is_among: impl Fn(&T) -> bool,
        compare: impl Fn(&T, &Literal) -> Option<Ordering>,
    ) -> Vec<bool> {
        let holds = |operator: Operator, value: &T, literal: &Literal| {
            compare(value, literal).is_some_and(|order| operator.holds(order))
        };
        match &self.comparison {
            Comparison::With(operator, (literal, _)) => {
                values.iter().map(|value| holds(*operator, value, literal)).collect()
            }
            Comparison::In(_) => values.iter().map(is_among).collect(),
            Comparison::Between((low, _), (high, _)) => {
                let between = |value: &T| {
                    holds(Operator::AtLeast, value, low) && holds(Operator::AtMost, value, high)
                };
                values.iter().map(between).collect()
            }
            Comparison::Null => vec![false; values.len()],
        }
    }
}

/// First float above all of `i64`.
const ABOVE_INTS: f64 = 9_223_372_036_854_775_808.0;

/// Compares an integer with a number that is not NaN, without rounding either.
fn int_with_float(int: i64, float: f64) -> Ordering {
    if float >= ABOVE_INTS {
        return Ordering::Less;
    }
    if float < -ABOVE_INTS {
        return Ordering::Greater;
    }
    let whole = float.trunc();
    // Exact, within the range of integers.
    int.cmp(&(whole as i64)).then_with(|| 0.0_f64.total_cmp(&(float - whole + 0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_floats_compare_exactly() {
        let big = (1_i64 << 53) + 1;
        for (int, float, order) in [
            (1, 1.0, Ordering::Equal),
            (1, 1.5, Ordering::Less),
            (-1, -1.5, Ordering::Greater),
            (0, -0.0, Ordering::Equal),
            (0, -0.25, Ordering::Greater),
            // As a float it would be equal.
            (big, (1_u64 << 53) as f64, Ordering::Greater),
            (i64::MAX, ABOVE_INTS, Ordering::Less),
            (i64::MIN, -ABOVE_INTS, Ordering::Equal),
            (i64::MIN, f64::MIN, Ordering::Greater),
        ] {
            assert_eq!(int_with_float(int, float), order, "{int} {float}");
        }
    }
}
