"""Clients that would be somebody else with every request."""

from measure import send, status
from report import attack
from servers import Api
from slow import proxy

TRIES = 40
LIMIT = 5


def passed(rules: str, requests, settings: str = "") -> tuple[bool, str]:
    """At most the limit may pass, whatever the requests look like."""
    node = proxy(f"{settings}rules: [{{ id: five, limit: {LIMIT}/h, {rules} }}]\n")
    count = sum(status(send(node.proxy, requests(number))) == 200 for number in range(TRIES))
    node.stop()
    return count <= LIMIT, f"{count} of {TRIES} pass"


def get(*headers: str, path: str = "/", host: str = "x") -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"host: {host}", "connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def post(body: str, kind: str = "application/json", path: str = "/login") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", "connection: close", f"content-type: {kind}", f"content-length: {len(body.encode())}"]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


JSON = "key: 'json:email'"
FORM = "key: 'form:email'"
MULTIPART = "multipart/form-data; boundary=XX"
LONG = "x" * 200
LONG_BODY = "x" * (65 << 10)


def part(parameters: str, value: str = "victim@example.com", rest: str = "") -> str:
    """A multipart form with one field."""
    return f"--XX\r\nContent-Disposition: form-data; {parameters}{rest}\r\n\r\n{value}\r\n--XX--\r\n"


CASES = [
    ("a made-up X-Forwarded-For", "key: ip", lambda n: get(f"x-forwarded-for: 203.0.113.{n}"), ""),
    ("a made-up Forwarded", "key: ip", lambda n: get(f"forwarded: for=203.0.113.{n}"), ""),
    ("a decoy before the real JSON field", JSON, lambda n: post(f'{{"email":"decoy{n}@example.com","email":"victim@example.com"}}'), ""),
    (
        "a decoy before a lone surrogate",
        JSON,
        lambda n: post(f'{{"email":"decoy{n}@example.com","\\ud800":0,"email":"victim@example.com"}}'),
        "",
    ),
    ("field names in another case", JSON, lambda n: post(f'{{"{["email", "Email", "EMAIL", "eMail"][n % 4]}":"victim@example.com"}}'), ""),
    ("emails in another case, with white space", JSON, lambda n: post(f'{{"email":"{" " * (n % 3)}VICTIM@example.com"}}'), ""),
    ("numbers written differently", "key: 'json:id'", lambda n: post(f'{{"id":{["42", "42.0", "4.2e1", "420e-1"][n % 4]}}}'), ""),
    ("a decoy in a form", "key: 'form:email'", lambda n: post(f"email=decoy{n}@example.com&email=victim@example.com", "application/x-www-form-urlencoded"), ""),
    ("a form field that has a file name", FORM, lambda n: post(part(f'name="email"; filename="{"" if n % 2 else n}"'), MULTIPART), ""),
    ("a form field that has two names", FORM, lambda n: post(part([f'name="{n}"; name="email"', f'name="email"; name="{n}"'][n % 2]), MULTIPART), ""),
    ("a boundary of 200 characters", FORM, lambda n: post(part("name=email").replace("XX", LONG), f"multipart/form-data; boundary={LONG}"), ""),
    ("a multipart form without CR", FORM, lambda n: post(part("name=email").replace("\r\n", "\n"), MULTIPART), ""),
    ("a multipart form with two boundaries", FORM, lambda n: post(part("name=email"), f"{MULTIPART}; boundary={n}"), ""),
    (
        "two content types",
        FORM,
        lambda n: post(part("name=email"), ["text/plain\r\ncontent-type: " + MULTIPART, MULTIPART + "\r\ncontent-type: text/plain"][n % 2]),
        "",
    ),
    (
        "a form field in quoted-printable",
        FORM,
        lambda n: post(part("name=email", "".join(f"={byte:02x}" if n >> at & 1 else chr(byte) for at, byte in enumerate(b"victim@example.com")), "\r\nContent-Transfer-Encoding: quoted-printable"), MULTIPART),
        "",
    ),
    ("a decoy before the field as a list, in a form", FORM, lambda n: post(f"email=decoy{n}&email[{'' if n % 2 else n}]=victim@example.com", "application/x-www-form-urlencoded"), ""),
    ("a decoy before the field as a list, in a multipart form", FORM, lambda n: post(part("name=email", f"decoy{n}").replace("--XX--", "") + part("name=email[]"), MULTIPART), ""),
    ("a decoy before the parameter as a list", "key: 'query:id'", lambda n: get(path=f"/?id=decoy{n}&id%5B%5D=victim"), ""),
    ("a decoy before a name with a dot for the underscore", "key: 'query:user_id'", lambda n: get(path=f"/?user_id=decoy{n}&user.id=victim"), ""),
    ("a decoy before a list in a list", JSON, lambda n: post(f'{{"email":"decoy{n}@example.com","email":[["victim@example.com"]]}}'), ""),
    ("a decoy before the 64 KiB that are read of a JSON body", JSON, lambda n: post(f'{{"email":"decoy{n}@example.com","x":"{LONG_BODY}","email":"victim@example.com"}}'), ""),
    ("a decoy before the 64 KiB that are read of a form", FORM, lambda n: post(f"email=decoy{n}&x={LONG_BODY}&email=victim", "application/x-www-form-urlencoded"), ""),
    (
        "JSON with comments, single quotes, names without quotes, semicolons",
        JSON,
        lambda n: post(["{'email':'v'}", '{/*}*/"email":"v"}', '{email:"v"}', '{"a":1;"email":"v"}', '// {}\n{"email":"v"}'][n % 5]),
        "",
    ),
    ("a comma behind the last JSON field", JSON, lambda n: post('{"email":"victim@example.com"' + "," * (n % 2) + "}"), ""),
    ("a decoy before a semicolon in a form", FORM, lambda n: post(f"email=decoy{n};email=victim@example.com", "application/x-www-form-urlencoded"), ""),
    ("a decoy before a semicolon in a query", "key: 'query:id'", lambda n: get(path=f"/?id=decoy{n};id=victim"), ""),
    (
        "another spelling of a cookie",
        "key: 'cookie:sid'",
        lambda n: get("cookie: sid=" + ["abc", "%61bc", '"abc"', '"\\141bc"', "%2561bc", '"a\\bc"', '"%61%62c"'][n % 7]),
        "",
    ),
    (
        "another spelling of credentials",
        "key: 'header:authorization'",
        lambda n: get("authorization: " + ["Bearer X", "bEARER X", "Bearer  X", "Bearer\tX", f"Bearer X {n}", f"Bearer {n} X"][n % 6]),
        "",
    ),
    ("a decoy query parameter", "key: 'query:id'", lambda n: get(path=f"/?id=decoy{n}&id=victim"), ""),
    ("a decoy cookie", "key: 'cookie:sid'", lambda n: get(f"cookie: sid=decoy{n}; sid=victim"), ""),
    ("a decoy header", "key: 'header:x-user'", lambda n: get(f"x-user: decoy{n}", "x-user: victim"), ""),
    ("another spelling of a path", "match: /login", lambda n: get(path=["/login", "/./login", "/a/../login", "/%6cogin", "//login", "/login/"][n % 6]), ""),
    ("HEAD in place of GET", "match: GET /login", lambda n: (get(path="/login") if n % 2 else get(path="/login").replace(b"GET", b"HEAD", 1)), ""),
    ("another spelling of a host", "host: api.example.com", lambda n: get(host=["api.example.com", "API.example.com", "api.example.com.", "api.example.com:80"][n % 4]), ""),
]

for what, rules, requests, settings in CASES:

    @attack("identity", f"{TRIES} requests with {what}", f"{LIMIT} pass")
    def spellings(rules=rules, requests=requests, settings=settings):
        return passed(rules, requests, settings)


@attack("identity", "a header that `Connection` removes, or with an underscore", "the API sees no identity that was not counted")
def removed():
    api = Api()
    node = proxy("rules: [{ id: five, limit: 5/h, key: 'header:x-api-key' }]\n", api)
    for number in range(20):
        send(node.proxy, get(f"x-api-key: {number}").replace(b"connection: close", b"connection: close, x-api-key"))
        send(node.proxy, get(f"x_api_key: {number}", f"X-Api_Key: {number}"))
    seen = sum(any("api" in name for name in headers) for _, _, _, headers, _ in api.requests)
    node.stop()
    return seen == 0 and api.requests, f"{seen} of {len(api.requests)} requests had one"
