//! The values of a request for one attribute.
//!
//! A request may have a field more than once, and servers disagree on which value counts. So all of them are
//! collected, up to a bound, and the rule decides what several mean.

use std::borrow::Cow;

/// A rule denies a request with more different values for its key.
pub const MAX_VALUES: usize = 8;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum AttributeValues<'h> {
    #[default]
    Missing,
    One(Cow<'h, str>),
    /// Two to [`MAX_VALUES`], all different, in the order of the request.
    Several(Vec<Cow<'h, str>>),
    TooMany,
}

impl<'h> AttributeValues<'h> {
    /// Adds a value unless it is already there. Compares with at most [`MAX_VALUES`] others.
    pub(crate) fn add(&mut self, value: Cow<'h, str>) {
        match self {
            AttributeValues::Missing => *self = AttributeValues::One(value),
            AttributeValues::One(first) if *first == value => {}
            AttributeValues::One(first) => {
                *self = AttributeValues::Several(vec![std::mem::take(first), value])
            }
            AttributeValues::Several(known) if known.contains(&value) => {}
            AttributeValues::Several(known) if known.len() == MAX_VALUES => *self = AttributeValues::TooMany,
            AttributeValues::Several(known) => known.push(value),
            AttributeValues::TooMany => {}
        }
    }

    /// The value, if there is exactly one.
    pub fn single(self) -> Option<Cow<'h, str>> {
        match self {
            AttributeValues::One(value) => Some(value),
            _ => None,
        }
    }

    pub fn is_ambiguous(&self) -> bool {
        matches!(self, AttributeValues::Several(_) | AttributeValues::TooMany)
    }

    /// The values mapped by `normal`, which may drop some and make others equal.
    pub(crate) fn map(self, normal: impl Fn(Cow<'h, str>) -> Option<Cow<'h, str>>) -> AttributeValues<'h> {
        match self {
            AttributeValues::One(value) => {
                normal(value).map_or(AttributeValues::Missing, AttributeValues::One)
            }
            AttributeValues::Several(values) => values.into_iter().filter_map(normal).collect(),
            other => other,
        }
    }
}

impl<'h> FromIterator<Cow<'h, str>> for AttributeValues<'h> {
    fn from_iter<I: IntoIterator<Item = Cow<'h, str>>>(values: I) -> AttributeValues<'h> {
        let mut all = AttributeValues::Missing;
        for value in values {
            all.add(value);
            if all == AttributeValues::TooMany {
                break;
            }
        }
        all
    }
}
