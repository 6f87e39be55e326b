//! Rules that all differ, the same ones at every run. The benchmarks make the same million.

/// How many different values the rules have.
#[derive(Clone, Copy)]
pub struct Mix {
    pub rules: usize,
    pub limits: usize,
    pub hosts: usize,
    pub users: usize,
    pub patterns: usize,
}

const METHODS: [&str; 5] = ["GET", "POST", "PUT", "DELETE", "PATCH"];
const ALGORITHMS: [&str; 4] = ["gcra", "token-bucket", "fixed-window", "sliding-counter"];
const UNITS: [&str; 4] = ["second", "minute", "hour", "day"];
const TEAMS: [&str; 8] =
    ["billing", "search", "media", "identity", "checkout", "catalog", "shipping", "support"];
const SEED: u64 = 0x7011_9a7e;

impl Mix {
    pub const MILLION: Mix =
        Mix { rules: 1_000_000, limits: 20_000, hosts: 50_000, users: 500_000, patterns: 200_000 };

    /// As mixed as the million, with fewer rules.
    pub fn of(rules: usize) -> Mix {
        let part = |all: usize| (all as u64 * rules as u64 / Mix::MILLION.rules as u64).max(1) as usize;
        let Mix { limits, hosts, users, patterns, .. } = Mix::MILLION;
        Mix { rules, limits: part(limits), hosts: part(hosts), users: part(users), patterns: part(patterns) }
    }

    /// One rule as JSON, with an id of 20 to 40 characters.
    pub fn text(&self, n: usize) -> String {
        let Parts { id, uid, method, host, path, .. } = self.parts(n);
        let limit = draw(n, 4, self.limits);
        let requests = 1 + limit / UNITS.len();
        let unit = UNITS[limit % UNITS.len()];
        let algorithm = ALGORITHMS[draw(n, 5, ALGORITHMS.len())];
        format!(
            r#"{{"id":"{id}","uid":"{uid}","url":"{method} {path}","time":"{unit}","requests":{requests},"algorithm":"{algorithm}","host":"{host}"}}"#
        )
    }

    /// What a request for a rule has.
    pub fn parts(&self, n: usize) -> Parts {
        let id = format!("{}.{}-{n:07}", TEAMS[draw(n, 6, TEAMS.len())], word(n));
        let length = 20 + draw(n, 7, 21);
        let id = format!("{id}.{}", "limits-of-the-customers-own-account").chars().take(length).collect();
        let path = draw(n, 2, self.patterns);
        let folder =
            format!("/api/v{}/{}/service-{}/items-{path}", 1 + path % 4, TEAMS[path % 7], path % 500);
        let (path, request_path) = match path % 10 {
            0 => (format!("{folder}/{{id}}"), format!("{folder}/77")),
            1 => (format!("{folder}/**"), format!("{folder}/a/b")),
            _ => (folder.clone(), folder),
        };
        Parts {
            id,
            uid: format!("user-{:06}", (n * 7_919) % self.users),
            method: METHODS[draw(n, 0, METHODS.len())],
            host: format!("shop-{:05}.example.com", draw(n, 1, self.hosts)),
            path,
            request_path,
        }
    }
}

pub struct Parts {
    pub id: String,
    pub uid: String,
    pub method: &'static str,
    pub host: String,
    /// The pattern, and a path that it matches.
    pub path: String,
    pub request_path: String,
}

/// A random number below `below` that is the same at every run.
fn draw(n: usize, what: u64, below: usize) -> usize {
    let mut state = SEED ^ (n as u64) << 8 ^ what;
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        state = (state ^ state >> 30).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(factor);
    }
    ((state ^ state >> 31) % below as u64) as usize
}

/// Two random letters: ids are not in the order in which they are made.
fn word(n: usize) -> String {
    let letter = |what| char::from(b'a' + draw(n, what, 26) as u8);
    [letter(8), letter(9)].iter().collect()
}
