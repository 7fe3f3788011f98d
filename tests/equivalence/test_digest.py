"""All objectives, and any number of ranks, see the same rows in the same order."""

from tests.support.runs import RunCase, write_run
from toolkit.testing.distributed import run_distributed


def test_equal_digests_for_clm_mlm_and_both(tmp_path):
    run_file = write_run(tmp_path, phase_steps=3)
    schedules = {
        "both": (),
        "clm": ("schedule.1.objective=clm",),
        "mlm": ("schedule.0.objective=mlm",),
    }
    digests = {}
    for world_size in (1, 2):
        cases = [
            RunCase(str(run_file), "zero1", (f"run.dir={tmp_path / name}-{world_size}", *overrides))
            for name, overrides in schedules.items()
        ]
        for name, results in zip(schedules, run_distributed(cases, world_size=world_size), strict=True):
            lines = results[0][1]
            digests[name, world_size] = [line["data_digest"] for line in lines if line["step"]]
            assert {line["objective"] for line in lines} == ({"clm", "mlm"} if name == "both" else {name})
    assert len(digests["both", 1]) == len(set(digests["both", 1])) == 6
    assert all(sequence == digests["both", 1] for sequence in digests.values())


def test_a_blend_gives_equal_digests_on_any_number_of_ranks(tmp_path):
    run_file = write_run(tmp_path, phase_steps=3)
    corpora = [(tmp_path / "corpus", 3), (tmp_path / "validation", 1)]
    blend = ", ".join(f'{{path="{path}", weight={weight}}}' for path, weight in corpora)
    found = set()
    for world_size, micro_rows in ((1, 8), (2, 1), (2, 4)):
        folder = tmp_path / f"blend-{world_size}-{micro_rows}"
        overrides = (f"run.dir={folder}", f"data.train=[{blend}]", f"train.micro_batch_rows={micro_rows}")
        ((_, lines),) = run_distributed([RunCase(str(run_file), "zero1", overrides)], world_size=world_size)[0][:1]
        found.add(tuple(line["data_digest"] for line in lines))
    assert len(found) == 1
    alone = run_distributed([RunCase(str(run_file), "zero1", (f"run.dir={tmp_path / 'alone'}",))], world_size=1)
    assert not set(found.pop()[1:]) & {line["data_digest"] for line in alone[0][0][1][1:]}


def test_another_seed_gives_another_order(tmp_path):
    run_file = write_run(tmp_path, phase_steps=3)
    cases = [RunCase(str(run_file), "zero0", (f"run.dir={tmp_path / str(s)}", f"run.seed={s}")) for s in (1, 2)]
    one, other = (results[0][1] for results in run_distributed(cases, world_size=1))
    assert one[-1]["data_digest"] != other[-1]["data_digest"]
