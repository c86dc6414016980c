//! Every metric of the catalogue, as Prometheus scrapes it and as OTLP carries it.
