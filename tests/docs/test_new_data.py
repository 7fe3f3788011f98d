"""The studies of docs/new-data.md, two months in a row, on toy corpora."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES
from tests.experiments.study.test_plan import Study, train
from tests.support.runs import RunCase, read_metrics, write_run
from toolkit.experiments.study.program import show_plan
from toolkit.run.folder import RunFolder
from toolkit.testing.corpora import random_documents, write_token_corpus
from toolkit.testing.distributed import run_distributed

pytestmark = pytest.mark.costs(15)

MONTHS = ("2026-10", "2026-11", "2026-12")


def test_each_month_two_arms_go_on_from_the_better_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, month in enumerate(MONTHS):
        for folder, many in ((f"data/{month}", 30), (f"data/{month}/holdout", 6)):
            documents = random_documents(many, vocabulary_size=97, max_length=90, first_id=3, seed=seed)
            write_token_corpus(tmp_path / folder, documents, vocabulary_size=97, eos=0, pad=1, mask=2)
    base = write_run(tmp_path, phase_steps=2).read_text().replace(f"{tmp_path}/run", f"{tmp_path}/runs/base")
    base = base.replace("/corpus", "/data/2026-10").replace("/validation", "/data/2026-10/holdout")
    (tmp_path / "base.toml").write_text(base)
    run_distributed([RunCase(str(tmp_path / "base.toml"))], world_size=1)

    page = next(page for page in PAGES if page.name == "docs/new-data.md")
    studies = [snippet.text for snippet in page.snippets("toml")]
    for number, (text, month) in enumerate(zip(studies, MONTHS[1:], strict=True), start=1):
        path = tmp_path / f"{month}.toml"
        assert f"As `{path.name}`:" in page.text
        text = re.sub(r'"(data|runs|studies|base)\b', rf'"{tmp_path}/\1', text)
        text = text.replace("[study]\n", f'[study]\ndir = "{tmp_path}/studies/{month}"\n')
        # Two steps of 8 rows of 64.
        path.write_text(text.replace("5_000_000_000", "1024").replace("= 500", "= 1"))
        show_plan(str(path))
        assert f"2 models in {tmp_path}/studies/{month}" in capsys.readouterr().out
        last = 4 + 2 * number
        begun = last - 2
        assert train(Study(str(path))) == [(f"{month}-new", begun, last), (f"{month}-half", begun, last)]
        for arm in ("new", "half"):
            run = RunFolder(tmp_path / "studies" / month / "runs" / f"{month}-{arm}")
            assert run.newest_step() == last
            line = read_metrics(run.path)[-1]
            assert line["step"] == last
            assert len(line["eval_loss"].keys() - {"clm", "mlm"}) == number + 1
