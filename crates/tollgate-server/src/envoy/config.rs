//! The configuration of envoyproxy/ratelimit, read as it is: a tree of descriptors for each domain.
//!
//! Each limit is a rule of a separate policy, which counts by the entries of the descriptor. The tree finds the limit of a
//! descriptor; the rule is then selected by its path.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate::Time;
use tollgate::internal::PolicySnapshot;
use tollgate::internal::document::{Problem, Problems};
use tollgate::internal::policy::Settings;

mod glob;
mod lookup;
mod read;
mod rules;
mod tree;

pub use lookup::FoundLimit;
pub use rules::native_rules;
use tree::Domain;
pub use tree::{ConfiguredLimit, LimitMode, Quantity};

use super::Compat;

const MAX_FILES: usize = 1_000;
const MAX_FILE_BYTES: u64 = 16 << 20;

/// The files of a folder as they were read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConfigTexts(Vec<(PathBuf, String)>);

/// All domains, with the policy of their limits.
pub struct EnvoyConfig {
    texts: ConfigTexts,
    domains: HashMap<Box<str>, Domain>,
    policy: Arc<PolicySnapshot>,
}

impl ConfigTexts {
    /// Reads the YAML files of a folder, in the order of their names.
    pub fn read(folder: &Path) -> Result<ConfigTexts, Problems> {
        let problem = |why: String| Problem::new(None, "envoy_config", why);
        let list = fs::read_dir(folder)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| problem(format!("{} cannot be read: {error}", folder.display())))?;
        let is_yaml = |path: &PathBuf| {
            path.extension().is_some_and(|end| end == "yaml" || end == "yml") && path.is_file()
        };
        let mut files: Vec<_> = list.iter().map(fs::DirEntry::path).filter(is_yaml).collect();
        files.sort();
        if files.len() > MAX_FILES {
            return Err(problem(format!("{} has more than {MAX_FILES} files", folder.display())).into());
        }
        let read = |path: PathBuf| {
            let name = path.display().to_string();
            let failed = |why: String| Problems::from(Problem::new(None, "", why)).in_file(&name);
            let length =
                fs::metadata(&path).map_err(|error| failed(format!("cannot be read: {error}")))?.len();
            if length > MAX_FILE_BYTES {
                return Err(failed(format!("is larger than {MAX_FILE_BYTES} bytes")));
            }
            let bytes = fs::read(&path).map_err(|error| failed(format!("cannot be read: {error}")))?;
            Ok((path, crate::config::utf8(bytes, &name)?))
        };
        files.into_iter().map(read).collect::<Result<_, _>>().map(ConfigTexts)
    }

    #[cfg(feature = "testing")]
    pub fn single(text: &str) -> ConfigTexts {
        ConfigTexts(vec![(PathBuf::from("envoy.yaml"), text.to_owned())])
    }

    /// The domains of all files; problems of all files are reported together.
    fn domains(&self) -> Result<HashMap<Box<str>, Domain>, Problems> {
        let mut problems = Problems::new();
        let mut domains: HashMap<Box<str>, Domain> = HashMap::new();
        for (path, text) in &self.0 {
            let name = path.display().to_string();
            match read::domain(text) {
                Err(found) => problems.merge(found.in_file(&name)),
                Ok((domain, _)) if domains.contains_key(domain.as_str()) => {
                    let message = format!("domain '{domain}' is also in another file");
                    problems.merge(Problems::from(Problem::new(None, "domain", message)).in_file(&name));
                }
                Ok((domain, descriptors)) => {
                    domains.insert(domain.into(), descriptors);
                }
            }
        }
        problems.or(domains)
    }
}

impl EnvoyConfig {
    pub fn new(texts: ConfigTexts, compat: Compat, settings: Settings) -> Result<EnvoyConfig, Problems> {
        let domains = texts.domains()?;
        let policy = Arc::new(rules::policy(&domains, compat, settings)?);
        Ok(EnvoyConfig { texts, domains, policy })
    }

    pub fn texts(&self) -> &ConfigTexts {
        &self.texts
    }

    /// Takes over the statistics and the predecessors of the limits that it replaces.
    pub fn inherit(self, old: &EnvoyConfig, now: Time) -> EnvoyConfig {
        let EnvoyConfig { texts, domains, policy } = self;
        let policy = match Arc::try_unwrap(policy) {
            Ok(policy) => Arc::new(policy.inherit(&old.policy, now)),
            Err(shared) => shared,
        };
        EnvoyConfig { texts, domains, policy }
    }

    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    pub fn policy(&self) -> &Arc<PolicySnapshot> {
        &self.policy
    }

    pub fn visit_limits<'l>(&'l self, visit: &mut impl FnMut(&str, &[(&str, &str)], &'l ConfiguredLimit)) {
        for (domain, descriptors) in &self.domains {
            descriptors.visit(&mut Vec::new(), &mut |entries, node| {
                if let Some(limit) = &node.limit {
                    visit(domain, entries, limit);
                }
            });
        }
    }

    /// The limit of each descriptor, without those that another one of the request replaces.
    pub fn limits<'c, 'd>(
        &'c self,
        domain: &str,
        descriptors: impl Iterator<Item = &'d [super::Entry<'d>]>,
    ) -> Vec<Option<FoundLimit<'c>>> {
        let domain = self.domains.get(domain);
        let find = |entries| domain.and_then(|domain| domain.find(entries));
        let mut found: Vec<_> = descriptors.map(find).collect();
        let limits = found.iter().flatten().map(|found| found.limit);
        let replaced: HashSet<&str> =
            limits.flat_map(|limit| limit.replaces.iter().map(AsRef::as_ref)).collect();
        if !replaced.is_empty() {
            let is_replaced = |found: &FoundLimit<'_>| replaced.contains(&*found.limit.name);
            found.iter_mut().for_each(|found| *found = found.take().filter(|found| !is_replaced(found)));
        }
        found
    }
}
