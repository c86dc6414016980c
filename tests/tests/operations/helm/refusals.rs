//! Invalid values, and Helm's errors.

use std::fs;

use sluicegate_tests::tools::{self, workspace};

use crate::alerts::seconds;

/// The error of Helm with these values; empty if there is none.
fn error(values: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values.yaml");
    fs::write(&file, values).unwrap();
    let output = tools::helm().args(["template", "edge", "helm", "--values"]).arg(file).output();
    let output = output.unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.success(), printed.is_empty(), "{values}: {printed}");
    printed
}

const REDIS: &str = "{store: redis, redis: {url: 'redis://redis'}";

#[test]
fn invalid_values_are_rejected_with_the_fix() {
    let redis = |more: &str| format!("{REDIS}, {more}}}");
    let redis_with = |more: &str| format!("{{store: redis, redis: {{{more}}}}}");
    for (values, message) in [
        // The memory store.
        ("{replicaCount: 2}".to_owned(), "'/replicaCount': value must be one of 0, 1, '(more of them need store: redis)'"),
        ("{autoscaling: {enabled: true}}".to_owned(), "'/autoscaling/enabled': value must be one of false, '(an autoscaler needs store: redis)'"),
        ("{replicaCount: '(more of them need store: redis)'}".to_owned(), "'/replicaCount': got string, want integer"),
        ("{redis: {url: 'redis://redis'}}".to_owned(), "redis is set, but store is memory"),
        // Redis.
        ("{store: redis}".to_owned(), "store: redis needs redis.url, or redis.existingSecret.name with urlKey"),
        ("{store: postgres}".to_owned(), "'/store': value must be one of 'memory', 'redis'"),
        (redis_with("url: 'http://redis'"), "'/redis/url': 'http://redis' does not match pattern"),
        (redis_with("url: 'redis://limiter:secret@redis'"), "redis.url has a password"),
        (redis_with("url: 'redis://:secret@redis'"), "redis.url has a password"),
        (redis_with("url: 'redis://redis', existingSecret: {name: a, urlKey: b}"), "redis.url and redis.existingSecret.urlKey: only one"),
        (redis_with("url: 'redis://redis', password: a, existingSecret: {name: b}"), "redis.password and redis.existingSecret.name: only one"),
        (redis_with("url: 'redis://redis', username: a"), "redis.username needs a password"),
        (redis_with("url: 'redis://redis', tls: {caSecret: {name: a}}"), "redis.url does not ask for TLS"),
        (redis_with("url: 'redis://redis', passwort: a"), "'/redis': additional properties 'passwort' not allowed"),
        ("{store: redis, redis: {existingSecret: {name: a, urlKey: b}}, networkPolicy: {enabled: true}}".to_owned(), "networkPolicy.redisPorts is needed"),
        // TLS.
        ("{grpc: {tls: {enabled: true}}}".to_owned(), "grpc.tls.enabled needs grpc.tls.secretName"),
        ("{grpc: {tls: {secretName: a}}}".to_owned(), "grpc.tls is set, but not on"),
        ("{grpc: {tls: {enabled: true, secretName: a, clientNames: [b]}}}".to_owned(), "grpc.tls.clientNames needs grpc.tls.clientCaSecret.name"),
        ("{test: {tls: {secretName: a}}}".to_owned(), "test.tls.secretName is set, but grpc.tls is not on"),
        // The admin listener.
        ("{admin: {exposed: true}}".to_owned(), "admin.exposed needs admin.tls"),
        ("{admin: {exposed: true, enabled: false}}".to_owned(), "admin.exposed needs admin.enabled"),
        ("{admin: {exposed: true, tls: {enabled: true, secretName: a}}}".to_owned(), "admin.exposed needs a token"),
        ("{admin: {token: fifteen-bytes--}}".to_owned(), "'/admin/token': 'fifteen-bytes--' does not match pattern"),
        ("{admin: {token: a-token-of-some-length, existingSecret: {name: b}}}".to_owned(), "admin.token and admin.existingSecret.name: only one"),
        ("{admin: {tls: {enabled: true}}}".to_owned(), "admin.tls.enabled needs admin.tls.secretName"),
        // Callers from outside the cluster.
        ("{service: {type: LoadBalancer}}".to_owned(), "service.type: LoadBalancer admits every client outside the cluster"),
        ("{service: {type: NodePort}, grpc: {tls: {enabled: true, secretName: a}}}".to_owned(), "service.type: NodePort admits every client outside the cluster"),
        ("{service: {type: NodePort}, networkPolicy: {enabled: true}}".to_owned(), "service.type: NodePort admits every client outside the cluster"),
        ("{service: {type: NodePort}, networkPolicy: {callers: [{podSelector: {}}]}}".to_owned(), "service.type: NodePort admits every client outside the cluster"),
        ("{service: {type: NodePort, loadBalancerSourceRanges: [10.0.0.0/8]}}".to_owned(), "service.loadBalancerSourceRanges: a Service of type NodePort admits every client"),
        ("{service: {loadBalancerSourceRanges: [10.0.0.0/8]}}".to_owned(), "service.loadBalancerSourceRanges: a Service of type ClusterIP admits every client"),
        ("{service: {type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0]}}".to_owned(), "'/service/loadBalancerSourceRanges/0': '10.0.0.0' does not match pattern"),
        ("{service: {externalTrafficPolicy: Local}}".to_owned(), "service.externalTrafficPolicy: a Service of type ClusterIP gets no traffic"),
        // Ports.
        // The usage listener.
        ("{usage: {enabled: true}}".to_owned(), "usage.enabled needs usage.tenantsSecret.name"),
        ("{usage: {enabled: true, port: 8082, tenantsSecret: {name: a}}}".to_owned(), "grpc.port, http.port, admin.port and usage.port must differ: 8081, 8080, 8082, 8082"),
        ("{usage: {tls: {enabled: true}}}".to_owned(), "usage.tls.enabled needs usage.tls.secretName"),
        ("{http: {port: 8081}}".to_owned(), "grpc.port, http.port and admin.port must differ: 8081, 8081, 8082"),
        ("{grpc: {port: 80}}".to_owned(), "'/grpc/port': minimum: got 80, want 1,024"),
        // Limits.
        ("{limits: {a.yaml: {domain: a}}, existingConfigMap: b}".to_owned(), "limits and existingConfigMap: only one"),
        ("{limits: {a.txt: {domain: a}}}".to_owned(), "invalid propertyName 'a.txt'"),
        ("{limits: {sub/a.yaml: {domain: a}}}".to_owned(), "invalid propertyName 'sub/a.yaml'"),
        ("{limits: {a.yaml: ''}}".to_owned(), "'/limits/a.yaml': minLength"),
        (format!("{{limits: {{a.yaml: '{}'}}}}", "#".repeat(1 << 20)), "limits are larger than a ConfigMap may be"),
        // Scaling and disruptions.
        (redis("autoscaling: {enabled: true, minReplicas: 3, maxReplicas: 2}"), "autoscaling.minReplicas: 3 is more than autoscaling.maxReplicas: 2"),
        (redis("autoscaling: {enabled: true, targetCPUUtilizationPercentage: 0}"), "autoscaling needs targetCPUUtilizationPercentage or metrics"),
        (redis("autoscaling: {enabled: true}, resources: {requests: {cpu: null}}"), "a share of resources.requests.cpu, which is not set"),
        (redis("autoscaling: {enabled: true}, settings: {replicas: 2}"), "settings.replicas is fixed"),
        ("{podDisruptionBudget: {maxUnavailable: 0}}".to_owned(), "podDisruptionBudget.maxUnavailable: 0 refuses every eviction"),
        ("{podDisruptionBudget: {maxUnavailable: 0%}}".to_owned(), "podDisruptionBudget.maxUnavailable: 0 refuses every eviction"),
        ("{podDisruptionBudget: {maxUnavailable: null}}".to_owned(), "podDisruptionBudget needs maxUnavailable or minAvailable"),
        ("{podDisruptionBudget: {minAvailable: 1}}".to_owned(), "podDisruptionBudget.minAvailable: 1 of 1 pods refuses every eviction"),
        (redis("replicaCount: 3, podDisruptionBudget: {minAvailable: 67%}"), "podDisruptionBudget.minAvailable: 67% of 3 pods"),
        (redis("autoscaling: {enabled: true, minReplicas: 2}, podDisruptionBudget: {minAvailable: 2}"), "podDisruptionBudget.minAvailable: 2 of 2 pods"),
        ("{rollingUpdate: {maxSurge: 0}}".to_owned(), "'/rollingUpdate/maxSurge': minimum: got 0, want 1"),
        // Durations and other settings.
        ("{settings: {decision-timeout: 10}}".to_owned(), "'/settings/decision-timeout'"),
        ("{settings: {decision-timeout: 0ms}}".to_owned(), "'/settings/decision-timeout'"),
        ("{settings: {decision-timeout: soon}}".to_owned(), "'/settings/decision-timeout'"),
        ("{drain: {delaySeconds: 5s}}".to_owned(), "'/drain/delaySeconds': got string, want integer"),
        ("{drain: {timeoutSeconds: -1}}".to_owned(), "'/drain/timeoutSeconds': minimum: got -1, want 0"),
        ("{settings: {near-limit-ratio: 1.5}}".to_owned(), "'/settings/near-limit-ratio': maximum: got 1.5, want 1"),
        ("{settings: {decision-timeot: 10ms}}".to_owned(), "'/settings': additional properties 'decision-timeot' not allowed"),
        ("{settings: {redis-password: secret}}".to_owned(), "'/settings': additional properties 'redis-password' not allowed"),
        ("{settings: {grpc-listen: '0.0.0.0:1'}}".to_owned(), "'/settings': additional properties 'grpc-listen' not allowed"),
        ("{extraEnv: [{name: SLUICEGATE_STORE, value: memory}]}".to_owned(), "extraEnv: SLUICEGATE_STORE is a setting of the server"),
        // Telemetry.
        ("{otlp: {endpoint: 'collector:4317'}}".to_owned(), "'/otlp/endpoint'"),
        ("{otlp: {traceRatio: 1}}".to_owned(), "otlp.traceRatio needs otlp.endpoint"),
        ("{otlp: {metricsInterval: 1ms}}".to_owned(), "'/otlp/metricsInterval': '1ms' does not match pattern"),
        ("{settings: {top-keys: 100001}}".to_owned(), "'/settings/top-keys': maximum: got 100,001, want 100,000"),
        ("{settings: {detailed-metric-series: 1000001}}".to_owned(), "'/settings/detailed-metric-series': maximum: got 1.000001"),
        ("{otlp: {traceRatio: 2}}".to_owned(), "'/otlp/traceRatio': maximum: got 2, want 1"),
        ("{otlp: {endpoint: 'http://collector:4317', caSecret: {name: a}}}".to_owned(), "otlp.endpoint is not encrypted"),
        ("{serviceMonitor: {interval: 5s}}".to_owned(), "serviceMonitor.scrapeTimeout: 10s is longer than serviceMonitor.interval: 5s"),
        ("{serviceMonitor: {interval: 61s}}".to_owned(), "serviceMonitor.interval: 61s is more than 1m"),
        ("{serviceMonitor: {interval: 2m}}".to_owned(), "serviceMonitor.interval: 2m is more than 1m"),
        ("{serviceMonitor: {interval: often}}".to_owned(), "'/serviceMonitor/interval'"),
        // Pods.
        ("{podLabels: {app.kubernetes.io/name: a}}".to_owned(), "podLabels: the chart sets the label app.kubernetes.io/name itself"),
        ("{test: {podLabels: {app.kubernetes.io/component: a}}}".to_owned(), "test.podLabels: the chart sets the label app.kubernetes.io/component itself"),
        ("{commonLabels: {app.kubernetes.io/component: a}}".to_owned(), "commonLabels: the chart sets the label app.kubernetes.io/component itself"),
        ("{replicas: 2}".to_owned(), "additional properties 'replicas' not allowed"),
        ("{prometheusRule: {runbook: 'a wiki'}}".to_owned(), "'/prometheusRule/runbook': 'a wiki' does not match pattern"),
        ("{image: {digest: latest}}".to_owned(), "'/image/digest': 'latest' does not match pattern"),
    ] {
        let printed = error(&values);
        assert!(printed.contains(message), "{values}: not {message:?} but {printed:?}");
    }
}

/// Valid values that are similar to rejected ones.
#[test]
fn valid_values_are_accepted() {
    for values in [
        "{replicaCount: 0}".to_owned(),
        format!("{REDIS}, replicaCount: 3, podDisruptionBudget: {{minAvailable: 66%}}}}"),
        format!("{REDIS}, replicaCount: 3, podDisruptionBudget: {{minAvailable: 2}}}}"),
        "{store: redis, redis: {url: 'redis://limiter@redis', password: a}}".to_owned(),
        "{podDisruptionBudget: {enabled: false, maxUnavailable: 0}}".to_owned(),
        "{serviceMonitor: {interval: 1m, scrapeTimeout: 60s}}".to_owned(),
        "{service: {type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/8, 'fd00::/8']}}".to_owned(),
        "{service: {type: NodePort, externalTrafficPolicy: Local}, networkPolicy: {enabled: true, callers: [{ipBlock: {cidr: 10.0.0.0/8}}]}}".to_owned(),
        "{service: {type: NodePort}, grpc: {tls: {enabled: true, secretName: a, clientCaSecret: {name: b}}}}".to_owned(),
    ] {
        assert_eq!(error(&values), "", "{values}");
    }
}

/// With fewer scrapes a rate may have no data, and an alert on it never fires.
#[test]
fn alert_rates_span_four_scrapes_at_the_longest_interval() {
    let rules = fs::read_to_string(workspace().join("helm/files/alerts.yaml")).unwrap();
    let spans = rules.split('[').skip(1).filter_map(|rest| rest.split(']').next());
    let beyond = spans.map(seconds).min().unwrap() / 4 + 1;
    let values = format!("{{serviceMonitor: {{interval: {beyond}s, scrapeTimeout: 1s}}}}");
    assert!(error(&values).contains("serviceMonitor.interval"), "{values} is accepted");
}

/// Helm can be run without the schema.
#[test]
fn the_memory_store_has_one_pod_even_without_the_schema() {
    for values in ["replicaCount=2", "autoscaling.enabled=true"] {
        let mut helm = tools::helm();
        helm.args(["template", "edge", "helm", "--skip-schema-validation", "--set", values]);
        let printed = String::from_utf8(helm.output().unwrap().stderr).unwrap();
        assert!(printed.contains("each pod counts for itself"), "{values}: {printed}");
    }
}
