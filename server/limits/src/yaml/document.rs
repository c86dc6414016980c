//! Reads the maps of a limits file: which keys a map has, and of which types.

use sluicegate_core::{
    Algorithm, Counting, OnFailure,
    rules::{DescriptorNode, LimitNode, LimitsFile, Located, Mistake, NodeLimits},
};

use super::{
    keys::MapKind,
    location::FileLocation,
    node::YamlNode,
    reader::{Fields, Reader},
    scalar::is_null,
};

impl Reader<'_> {
    /// Reads the root of a file; `None` if the file is not a map with a domain, or if there are more mistakes than are
    /// listed.
    pub(super) fn file(&mut self, root: &YamlNode<'_>) -> Option<LimitsFile> {
        // A missing key is reported at the beginning of the file.
        let fields = self.map(&FileLocation::file_start(), root, MapKind::Root)?;
        let location = self.source_location(&fields.location);
        let has_domain = fields.get("domain").is_some();
        let domain = self.required(&fields, "domain");
        let defaults = fields.get("defaults").filter(|(_, node)| !is_null(node));
        let algorithm = defaults.and_then(|(location, node)| {
            let defaults = self.map(&location, node, MapKind::Defaults)?;
            self.algorithm(&defaults)
        });
        let tenant = self.text(&fields, "tenant");
        let counting = self.counting(&fields);
        let on_failure = self.on_failure(&fields);
        let response_body = self.response_body(&fields);
        let descriptors = self.descriptors(&fields);
        if !has_domain {
            // The compiler would quote names of the file, which may not be a limits file. If an unknown key was
            // reported, it may be the misspelt `domain`.
            if !fields.has_mistakes {
                self.mistake(&fields.location, Mistake::Missing("domain"));
            }
            return None;
        }
        if self.has_unlisted_mistakes() {
            return None;
        }
        Some(LimitsFile {
            location,
            domain,
            tenant,
            counting,
            on_failure,
            algorithm,
            response_body,
            descriptors,
        })
    }

    fn descriptors(&mut self, of: &Fields<'_, '_>) -> Vec<DescriptorNode> {
        let nodes = self.list(of, "descriptors");
        let mut descriptors = Vec::with_capacity(nodes.len());
        for (location, node) in nodes {
            if self.has_unlisted_mistakes() {
                break;
            }
            descriptors.extend(self.descriptor(&location, node));
        }
        descriptors
    }

    fn descriptor(
        &mut self,
        location: &FileLocation,
        node: &YamlNode<'_>,
    ) -> Option<DescriptorNode> {
        let fields = self.map(location, node, MapKind::Descriptor)?;
        Some(DescriptorNode {
            location: self.source_location(&fields.location),
            key: self.required(&fields, "key").value,
            value: self.value(&fields),
            limits: self.limits(&fields),
            counting: self.counting(&fields),
            on_failure: self.on_failure(&fields).map(|it| it.value),
            shadow_mode: self.flag(&fields, "shadow_mode"),
            quota_mode: self.flag(&fields, "quota_mode"),
            detailed_metric: self.flag(&fields, "detailed_metric"),
            value_to_metric: self.flag(&fields, "value_to_metric"),
            share_threshold: self.flag(&fields, "share_threshold"),
            metadata: self.metadata(&fields),
            response_body: self.response_body(&fields),
            descriptors: self.descriptors(&fields),
        })
    }

    fn limits(&mut self, of: &Fields<'_, '_>) -> Option<NodeLimits> {
        let one = of.get("rate_limit").filter(|(_, node)| !is_null(node));
        if let Some((location, _)) = of.get("limits") {
            if one.is_some() {
                self.mistake(&location, Mistake::LimitsTwice);
            }
            let nodes = self.list(of, "limits");
            let count = nodes.len();
            let limits: Vec<_> = nodes
                .into_iter()
                .filter_map(|(location, node)| self.limit(&location, node, MapKind::LimitOfList))
                .collect();
            // If no element is a limit, each was reported; the empty list would be a further mistake.
            let has_only_mistakes = limits.is_empty() && count > 0;
            return (!has_only_mistakes)
                .then(|| NodeLimits::Several(self.source_location(&location), limits));
        }
        let (location, node) = one?;
        let limit = self.limit(&location, node, MapKind::Limit)?;
        Some(NodeLimits::One(Box::new(limit)))
    }

    /// Reads one limit; `None` if the node is not a map.
    fn limit(
        &mut self,
        location: &FileLocation,
        node: &YamlNode<'_>,
        kind: MapKind,
    ) -> Option<LimitNode> {
        let mistakes = self.mistakes;
        let fields = self.map(location, node, kind)?;
        let requests_per_unit = self.number(&fields, "requests_per_unit");
        let unit_multiplier = self.number(&fields, "unit_multiplier");
        let burst = self.number(&fields, "burst");
        let unlimited = self.flag(&fields, "unlimited");
        let name = self.text(&fields, "name");
        let mistakes_before_unit = self.mistakes;
        let unit = self.text(&fields, "unit");
        let unit = unit.filter(|_| self.mistakes == mistakes_before_unit);
        let window = self.duration(&fields, "window");
        let algorithm = self.algorithm(&fields).map(|it| it.value);
        let is_incomplete = self.mistakes > mistakes;
        Some(LimitNode {
            location: self.source_location(&fields.location),
            requests_per_unit,
            unit,
            unit_multiplier,
            window,
            algorithm,
            burst,
            unlimited,
            name,
            replaces: self.replaces(&fields),
            is_incomplete,
        })
    }

    fn replaces(&mut self, of: &Fields<'_, '_>) -> Vec<Located<String>> {
        let nodes = self.list(of, "replaces");
        nodes
            .into_iter()
            .filter_map(|(location, node)| {
                let fields = self.map(&location, node, MapKind::Replace)?;
                Some(self.required(&fields, "name"))
            })
            .collect()
    }

    fn algorithm(&mut self, of: &Fields<'_, '_>) -> Option<Located<Algorithm>> {
        let find = |text: &str| Algorithm::ALL.into_iter().find(|it| it.name() == text);
        self.enum_value(of, "algorithm", Algorithm::NAMES, find)
    }

    fn counting(&mut self, of: &Fields<'_, '_>) -> Option<Located<Counting>> {
        let find = |text: &str| Counting::ALL.into_iter().find(|it| it.name() == text);
        self.enum_value(of, "counting", "free, debit or upstream", find)
    }

    fn on_failure(&mut self, of: &Fields<'_, '_>) -> Option<Located<OnFailure>> {
        let find = |text: &str| OnFailure::ALL.into_iter().find(|it| it.name() == text);
        self.enum_value(of, "on_failure", "allow, deny, local or defer", find)
    }
}
