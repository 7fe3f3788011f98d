"""The example of docs/embeddings.md runs, and MTEB scores its kind of model as we do."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, EuroBertConfig, EuroBertModel

from tests.support.apart import run_apart
from tests.support.hf_encoders import save_encoder
from tests.support.retrieval import word_collection
from tests.support.sources import ROOT
from toolkit.experiments.finetune import finetune
from toolkit.finetuning.ir.task import RetrievalSettings

MTEB = """
import json, sys
from pathlib import Path

import mteb
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from sentence_transformers import SentenceTransformer

folder, model = map(Path, sys.argv[1:])
unknown = ("reference", "date", "domains", "task_subtypes", "license", "annotations_creators", "dialect",
           "sample_creation", "bibtex_citation")

def rows(name):
    return {row["_id"]: row for row in map(json.loads, (folder / name).read_text().splitlines())}

class Words(AbsTaskRetrieval):
    metadata = TaskMetadata(
        name="Words", description="A BEIR folder.", type="Retrieval", category="t2t", eval_splits=["test"],
        dataset={"path": "none", "revision": "none"}, eval_langs=["eng-Latn"], main_score="ndcg_at_10",
        **dict.fromkeys(unknown),
    )

    def load_data(self, **options):
        judged = {}
        for line in (folder / "qrels/test.tsv").read_text().splitlines()[1:]:
            query, document, grade = line.split("\\t")
            judged.setdefault(query, {})[document] = int(grade)
        asked = {key: row["text"] for key, row in rows("queries.jsonl").items() if key in judged}
        parts = asked, rows("corpus.jsonl"), judged
        self.queries, self.corpus, self.relevant_docs = ({"test": part} for part in parts)
        self.convert_v1_dataset_format_to_v2(None)
        self.data_loaded = True

found = mteb.evaluate(SentenceTransformer(str(model), device="cpu"), [Words()], cache=None)
print(json.dumps(found.task_results[0].scores["test"][0]))
"""


@pytest.mark.slow
def test_the_example_trains_in_two_stages(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "toolkit/quickstart/tokenizer")
    tokenizer.model_max_length = 96
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "max_position_embeddings": 96}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "mask_token_id"), 0)
    model = EuroBertModel(EuroBertConfig(vocab_size=len(tokenizer), **sizes, **heads, **special))
    model.save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    script, text = ROOT / "docs/examples/embedding/train.py", ROOT / "toolkit/quickstart/wikipedia-validation.parquet"
    words = [str(script), "encoder", str(text), "out", "--steps", "30", "--rate", "5e-3"]
    done = run_apart(*words, folder=tmp_path, environment=dict(os.environ))
    assert done.returncode == 0, done.stderr
    scores = [float(line.split()[-1]) for line in done.stdout.splitlines() if "cosine_ndcg@10" in line]
    assert len(scores) == 3
    assert scores[0] < scores[2]
    assert (tmp_path / "out/model/modules.json").is_file()


@pytest.mark.long
def test_mteb_scores_a_folder_as_we_do(tmp_path: Path) -> None:
    """MTEB is in an environment of its own, which sees this one's packages; it rounds to five digits."""
    python = tmp_path / "mteb/bin/python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "mteb"], check=True)
    (site,) = (tmp_path / "mteb/lib").glob("python*/site-packages")
    (site / "shared.pth").write_text(sysconfig.get_paths()["purelib"])
    installed = subprocess.run([python, "-m", "pip", "install", "-q", "mteb>=2.26,<3"], check=False)
    if installed.returncode:
        pytest.skip("mteb cannot be installed here")
    collection, settings = word_collection(tmp_path / "words"), RetrievalSettings(steps=3, batch_rows=8)
    encoder, output = save_encoder("eurobert", tmp_path / "encoder"), tmp_path / "out"
    ours = finetune("ir", encoder, train=collection, test=collection, output=output, settings=settings).test
    command = [python, "-c", MTEB, collection, output / "model"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert theirs["ndcg_at_10"] == pytest.approx(ours["ndcg@10"], abs=6e-6)
    assert theirs["recall_at_100"] == pytest.approx(ours["recall@100"], abs=6e-6)
    assert theirs["mrr_at_10"] == pytest.approx(ours["mrr@10"], abs=1e-6)
