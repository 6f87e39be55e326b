//! An editor of the database, and the state that nodes have of it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tokio::runtime::Runtime;
use tollgate::Time;
use tollgate_stores::rules::{
    Author, ChangeLogEntry, DbError, Edit, ItemChange, ItemId, Precondition, RuleText, RulesDb,
};
use tollgate_testkit::{Server, eventually};

pub struct Editor {
    runtime: Runtime,
    db: RulesDb,
}

impl Editor {
    pub fn open(address: &str, folder: &Path) -> Editor {
        let runtime = Runtime::new().expect("a runtime");
        let db = runtime.block_on(RulesDb::open(address, folder)).expect("the database opens");
        Editor { runtime, db }
    }

    pub fn try_edit(&self, edits: Vec<Edit>) -> Result<Vec<ItemChange>, DbError> {
        self.try_edit_as("test", now(), edits)
    }

    fn try_edit_as(&self, name: &str, at: Time, edits: Vec<Edit>) -> Result<Vec<ItemChange>, DbError> {
        self.runtime.block_on(self.db.edit(Author::new(name, at), edits))
    }

    /// Edits as another author, at another time.
    pub fn edit_as(&self, name: &str, at: Time, edits: Vec<Edit>) -> Vec<ItemChange> {
        self.try_edit_as(name, at, edits).expect("the database can be written")
    }

    /// The latest entries of the log.
    pub fn log(&self, limit: usize) -> Vec<ChangeLogEntry> {
        self.runtime.block_on(self.db.log(None, limit)).expect("the database can be read")
    }

    pub fn edit(&self, edits: Vec<Edit>) -> Vec<ItemChange> {
        self.try_edit(edits).expect("the database can be written")
    }

    pub fn put(&self, id: &str, options: &str) -> Vec<ItemChange> {
        self.edit(vec![rule(id, options)])
    }

    /// Everything that the database holds, read again: rule ids with their limits.
    pub fn rules(&self) -> BTreeMap<String, String> {
        let (sender, loaded) = std::sync::mpsc::channel();
        let each = move |batch, _| _ = sender.send(batch);
        self.runtime.block_on(self.db.load(each)).expect("the database can be read");
        let stored = loaded.into_iter().flatten();
        stored.map(|stored| (stored.item.name.to_string(), limit_in(&stored.text))).collect()
    }
}

pub fn rule(id: &str, options: &str) -> Edit {
    let text = format!("{{id: {id}, key: user, {options}}}");
    Edit::rule(RuleText::parse(&text).expect("a valid rule"), Precondition::Any)
}

pub fn deletion(id: &str) -> Edit {
    Edit::delete(ItemId::rule(id), Precondition::Any)
}

fn limit_in(text: &str) -> String {
    let rule: Value = serde_json::from_str(text).expect("a rule is JSON");
    rule["limit"].as_str().expect("these tests give one limit").to_owned()
}

/// The rules in force on a node, with their limits. The list goes by the ids of the database, so it is read until
/// the node has just those.
pub fn in_force(server: &Server) -> BTreeMap<String, String> {
    let mut rules = BTreeMap::new();
    eventually("the node has the rules that it lists", || {
        let total = list(server, &mut rules);
        total == rules.len()
    });
    rules
}

/// Fills in what is in force of the list, and says how many rules are in force.
fn list(server: &Server, rules: &mut BTreeMap<String, String>) -> usize {
    let mut after = String::new();
    rules.clear();
    loop {
        let page = server.admin("GET", &format!("/v1/rules?limit=1000{after}"), "").json();
        let shown = page["rules"].as_array().expect("a list of rules");
        for rule in shown.iter().filter(|rule| rule.get("left_out").is_none()) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            rules.insert(text(&rule["id"]), text(&rule["limits"][0]));
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return page["total"].as_u64().map_or(0, |total| total as usize),
        }
    }
}

pub fn agree(nodes: &[Server], expected: &BTreeMap<String, String>) {
    eventually("every node has what the database has", || {
        nodes.iter().all(|node| &in_force(node) == expected)
    });
}

pub fn now() -> Time {
    tollgate::Clock::new().now()
}
