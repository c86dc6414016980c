//! What well-behaved peers see of the bounds: Envoy under load, and the field's test tools.
