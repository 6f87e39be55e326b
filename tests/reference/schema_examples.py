"""The configuration's JSON Schema: the files of examples/ and the blocks of the documentation are valid under it, and mistakes
are not."""

import copy
import json
import sys

from process import ROOT
from table import Missing

sys.path[:0] = [str(ROOT / "tests/doc_examples")]

import page  # noqa: E402

# Each with a change that an editor should underline.
MISTAKES = {
    "an unknown setting": lambda file: file.update(colour="red"),
    "an unknown key of a setting": lambda file: file.update(listen={"htpp": "127.0.0.1:1"}),
    "an unknown key of a rule": lambda file: file["rules"][0].update(limmit="5/m"),
    "an unknown key of a ban": lambda file: file["rules"][0].update(ban={"afer": "3"}),
    "an unknown algorithm": lambda file: file["rules"][0].update(algorithm="magic"),
    "an unknown mode": lambda file: file["rules"][0].update(mode="enforced"),
    "an unknown word of a setting": lambda file: file.update(log_keys="all"),
    "a rule in place of a list": lambda file: file.update(rules={"id": "a", "limit": "5/m"}),
}
RIGHT = {"rules": [{"id": "a", "limit": "5/m", "algorithm": "gcra", "mode": "shadow"}], "log_keys": "plain"}


def problems() -> list[str]:
    """What is wrong with the committed schema."""
    try:
        import jsonschema
        import yaml
    except ImportError as error:
        raise Missing(f"{error.name} is not installed: apt-get install python3-jsonschema python3-yaml") from error
    schema = json.loads((ROOT / "docs/reference/tollgate.schema.json").read_text())
    validator = jsonschema.Draft7Validator(schema)

    class Loader(yaml.SafeLoader):
        """Words such as `on` and `off` are text, as in YAML 1.2."""

    Loader.yaml_implicit_resolvers = {
        first: [one for one in resolvers if one[0] == "tag:yaml.org,2002:null"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    found = []
    checked = 0
    for name, text in _examples():
        file = yaml.load(text, Loader)
        checked += 1
        for error in validator.iter_errors({"rules": file} if isinstance(file, list) else file):
            found.append(f"{name}: {'.'.join(map(str, error.absolute_path))}: {error.message}")
    if checked < 50:
        found.append(f"only {checked} examples were found")
    if not validator.is_valid(RIGHT):
        found.append("the schema refuses a valid file")
    for name, change in MISTAKES.items():
        wrong = copy.deepcopy(RIGHT)
        change(wrong)
        if validator.is_valid(wrong):
            found.append(f"the schema accepts {name}")
    return found


def _examples():
    """Configurations with where they are."""
    for path in sorted([*ROOT.glob("examples/**/tollgate.yaml"), *ROOT.glob("packaging/**/tollgate.yaml")]):
        yield str(path.relative_to(ROOT)), path.read_text()
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        for block in page.read(path).blocks:
            is_configuration = block.file is None or block.file.endswith("tollgate.yaml")
            if block.language == "yaml" and not block.not_run and is_configuration:
                yield f"{path.relative_to(ROOT)}:{block.line}", block.body
