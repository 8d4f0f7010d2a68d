"Progress of existing code, in real jobs: tqdm always, transformers, TRL and Lightning where they are installed."
import subprocess, sys, textwrap

import pytest

import dtnb
from dtnb.event import EventReader
from dtnb.launchers.local import Local

NOT_HERE = "{} is not installed in this environment: its real Trainer is not tried"


def events(fn, *args, nproc=2):
    "Run a job; the events of each of its ranks"
    job = dtnb.launch(fn, *args, on=Local(nproc=nproc))
    assert set(job.results(180)) == set(range(nproc))
    return {rank: EventReader(job.paths.events(rank)).read() for rank in range(nproc)}


def bars(rank_events): return [(e.get("desc"), e.get("n"), e.get("total"), e.get("depth")) for e in rank_events if e.get("closed")]


def last(rank_events):
    "What a view ends with: the last record of each bar"
    return list({e.get("bar"): (e.get("desc"), e.get("n"), e.get("total"), e.get("depth")) for e in rank_events if e.kind == "progress"}.values())


def numbers(rank_events): return {k: v for e in rank_events if e.kind == "scalar" for k, v in e.get("values").items()}


def alone(code):
    "Run a script in its own interpreter; its output"
    p = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert p.returncode == 0, p.stderr
    return p.stderr + p.stdout


# ---- tqdm

def test_every_kind_of_bar():
    def train():
        from tqdm import tqdm, trange
        from tqdm.auto import tqdm as auto
        from tqdm.notebook import tqdm as notebook
        for epoch in trange(2, desc="outer"):
            for batch in auto(range(300), desc="inner"): pass
        for i in notebook(range(7), desc="notebook", ncols="50%"): pass
        hand = tqdm(total=10, unit="B")
        for i in range(10): hand.update()
        hand.set_description("hand")
        hand.close()
        for i in tqdm(range(10), desc="left"):
            if i == 4: break
        try:
            for i in tqdm(range(10), desc="raised"): 1 / (2 - i)
        except ZeroDivisionError: pass
        dropped = tqdm(total=5, desc="dropped")
        dropped.update(3)
        del dropped
        for i in tqdm(range(10), desc="off", disable=True): pass
    for rank, got in events(train).items():
        assert [b for b in bars(got) if b[3] == 0] == [("outer", 2, 2, 0), ("notebook", 7, 7, 0), ("hand", 10, 10, 0), ("left", 4, 10, 0),
                                                       ("raised", 2, 10, 0), ("dropped", 3, 5, 0)]
        assert bars(got)[0] == ("inner", 300, 300, 1)


def test_the_text_bar_goes_to_stderr_and_the_class_of_the_kernel_is_the_plain_one():
    from tqdm.notebook import tqdm_notebook
    def train():
        import sys
        for i in tqdm_notebook(range(3), desc="from the kernel"): pass
        sys.stderr.flush()
        return tqdm_notebook.__module__
    job = dtnb.launch(train, on=Local(nproc=2))
    assert job.results(60) == {0: "tqdm.std", 1: "tqdm.std"}
    assert "from the kernel: 100%" in str(job.logs(rank=1))


def test_children_of_a_rank_report_nothing():
    def train():
        from torch.utils.data import DataLoader
        from tqdm import tqdm
        class Data:
            def __len__(self): return 4
            def __getitem__(self, i): return sum(tqdm([i], desc="in a worker"))
        for batch in tqdm(DataLoader(Data(), num_workers=2), desc="batches"): pass
    for got in events(train).values(): assert last(got) == [("batches", 4, 4, 0)]


def test_numbers_of_numpy_and_a_closed_file():
    def train():
        import io, numpy
        from tqdm import tqdm
        hand = tqdm(total=numpy.int64(4), file=io.StringIO(), desc="numpy")
        hand.update(numpy.int64(4))
        hand.close()
        broken = tqdm(total=2, file=(file := io.StringIO()), desc="broken")
        file.close()
        broken.close()
    for got in events(train).values(): assert bars(got) == [("numpy", 4, 4, 0), ("broken", 0, 2, 0)]


def test_no_widget_is_missed():
    out = alone("""
        import sys, tempfile, warnings
        import ipykernel.zmqshell                 # tqdm.auto takes this for a notebook
        sys.modules["ipywidgets"] = None
        warnings.simplefilter("always")         # tqdm would swallow it as an error
        from dtnb.event import EventWriter
        from dtnb.rank.adapters import failures, install_adapters
        from dtnb.rank.report import Reporter
        with tempfile.TemporaryDirectory() as tmp:
            install_adapters(Reporter(EventWriter(f"{tmp}/e", rank=0)))
            from tqdm.auto import tqdm
            for i in tqdm(range(3), desc="plain"): pass
        print([c.__module__ for c in tqdm.__mro__[:3]], list(failures))
    """)
    assert "IProgress not found" not in out
    assert "plain: 100%" in out and "'tqdm.std'" in out and out.rstrip().endswith("[]"), out


def test_a_warm_process_may_hold_the_notebook_bar():
    out = alone("""
        import sys, tempfile
        import ipykernel.zmqshell
        from tqdm.auto import tqdm, trange        # before the adapters: the class with widgets
        assert "tqdm.notebook" in str(tqdm.__mro__)
        from dtnb.event import EventReader, EventWriter
        from dtnb.rank.adapters import failures, install_adapters
        from dtnb.rank.report import Reporter
        with tempfile.TemporaryDirectory() as tmp:
            install_adapters(reporter := Reporter(EventWriter(f"{tmp}/e", rank=0)))
            for i in tqdm(range(3), desc="held"): pass
            for i in trange(2, desc="range", display=False): pass
            reporter.stop()
            print([e.get("desc") for e in EventReader(f"{tmp}/e").read() if e.get("closed")], list(failures))
    """)
    assert "held: 100%" in out and out.rstrip().endswith("['held', 'range'] []"), out


def test_nothing_is_patched_outside_a_job():
    assert alone("""
        import sys
        before = list(sys.meta_path)
        import tqdm.std, dtnb, dtnb.rank.adapters as a
        assert not hasattr(tqdm.std.tqdm.__init__, "by_dtnb") and not hasattr(tqdm.std.tqdm.close, "by_dtnb")
        assert sys.meta_path == before and a.lightning_callbacks() == []
    """) == ""


def test_importing_is_never_broken():
    assert alone("""
        import importlib.util, inspect, sys
        from dtnb.rank.adapters import failures, on_import
        got = []
        on_import("colorsys", lambda m: 1 / 0)
        on_import("colorsys", lambda m: got.append(m.__name__))
        on_import("no_such_module_at_all", got.append)
        on_import("this", lambda m: got.append("never twice"))
        assert importlib.util.find_spec("colorsys").origin.endswith("colorsys.py") and got == []
        import colorsys
        importlib.reload(colorsys)
        assert got == ["colorsys"] and len(failures) == 1 and "ZeroDivisionError" in failures[0]
        assert "rgb_to_hsv" in inspect.getsource(colorsys) and colorsys.__spec__.loader is colorsys.__loader__
        try: import no_such_module_at_all
        except ModuleNotFoundError as e: assert "no_such_module_at_all" in str(e)
        else: assert False
    """) == ""


# ---- Accelerate

def test_accelerate_logs_on_every_rank_and_trackers_on_the_first():
    def train():
        import os
        from accelerate import Accelerator
        from accelerate.tracking import GeneralTracker
        class Kept(GeneralTracker):
            name, requires_logging_directory, tracker, main_process_only = "kept", False, None, True
            def __init__(self): super().__init__(); self.got = []
            def store_init_configuration(self, values): pass
            def log(self, values, step=None, **kwargs): self.got.append((values, step))
        kept = Kept()
        accelerator = Accelerator(log_with=kept)
        accelerator.init_trackers("test")
        accelerator.log({"loss": float(os.environ["RANK"]), "note": "text"}, step=5)
        accelerator.log(values={"accuracy": .5}, step=5, log_kwargs={})
        accelerator.end_training()
        return kept.got
    job = dtnb.launch(train, on=Local(nproc=2))
    assert job.results(120) == {0: [({"loss": 0.0, "note": "text"}, 5), ({"accuracy": .5}, 5)], 1: []}
    for rank in range(2):
        got = EventReader(job.paths.events(rank)).read()
        assert numbers(got) == dict(loss=float(rank), accuracy=.5)
        assert {e.get("step") for e in got if e.kind == "scalar"} == {5}


# ---- transformers and TRL

def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                                        num_key_value_heads=2, max_position_embeddings=64))


def hf_train(folder, evaluate):
    import torch
    from transformers import Trainer, TrainingArguments
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 32
        def __getitem__(self, i):
            x = torch.randint(0, 64, (8,))
            return dict(input_ids=x, labels=x)
    args = TrainingArguments(folder, use_cpu=True, per_device_train_batch_size=2, per_device_eval_batch_size=4, num_train_epochs=2,
                             logging_steps=2, eval_strategy="epoch" if evaluate else "no", save_strategy="no", report_to=[])
    trainer = Trainer(tiny_llama(), args, train_dataset=Data(), eval_dataset=Data())
    trainer.train()
    return trainer


def test_trainer_reports_its_steps_once_on_every_rank(tmp_path):
    pytest.importorskip("transformers", reason=NOT_HERE.format("transformers"))
    def train(folder): hf_train(folder, evaluate=False)
    for got in events(train, str(tmp_path)).values():
        assert last(got) == [("train", 16, 16, 0)]      # 32 rows, 2 epochs, 2 ranks of 2
        assert {"loss", "learning_rate", "train_loss", "epoch"} <= set(numbers(got))


def test_bars_of_an_evaluation_show_beside_it_and_the_trainer_can_be_returned(tmp_path):
    pytest.importorskip("transformers", reason=NOT_HERE.format("transformers"))
    def train(folder):
        trainer = hf_train(folder, evaluate=True)
        return [c for c in trainer.callback_handler.callbacks if type(c).__name__ == "DtnbProgress"]
    job = dtnb.launch(train, str(tmp_path), on=Local(nproc=1))
    assert len(job.result(timeout=180)) == 1
    got = EventReader(job.paths.events(0)).read()
    assert bars(got)[-1] == ("train", 32, 32, 0) and [b[:1] + b[2:] for b in last(got)[1:]] == [("", 8, 1)] * (len(last(got)) - 1)
    assert {"loss", "eval_loss"} <= set(numbers(got))


def test_trl_sft_trainer_reports_by_inheritance(tmp_path):
    pytest.importorskip("trl", reason=NOT_HERE.format("trl"))
    def train(folder):
        from datasets import Dataset
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
        from trl import SFTConfig, SFTTrainer
        words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>", "one", "two", "three"])}, unk_token="<unk>"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
        args = SFTConfig(folder, use_cpu=True, bf16=False, per_device_train_batch_size=2, max_steps=6, logging_steps=1, save_strategy="no",
                         report_to=[], max_length=16)
        rows = Dataset.from_dict(dict(text=["one two three"] * 32))
        SFTTrainer(tiny_llama(), args=args, train_dataset=rows, processing_class=tokenizer).train()
    for got in events(train, str(tmp_path)).values():
        assert [b for b in bars(got) if b[0] == "train"] == [("train", 6, 6, 0)]
        assert sum(b[2] == 6 for b in last(got)) == 1
        assert "loss" in numbers(got)


# ---- Lightning

@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
@pytest.mark.parametrize("bar", ["TQDMProgressBar", "RichProgressBar"])
def test_lightning_reports_epochs_batches_and_metrics_on_every_rank(package, bar, tmp_path):
    pytest.importorskip(package, reason=NOT_HERE.format(package))
    if bar == "RichProgressBar": pytest.importorskip("rich", reason="rich is not installed: Lightning has no rich bar")
    def train(package, bar, folder):
        import importlib, torch
        L = importlib.import_module(package)
        callbacks = importlib.import_module(f"{package}.callbacks")
        class Model(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
            def training_step(self, batch, i):
                loss = self.layer(batch).mean()
                self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True, sync_dist=True)
                return loss
            def validation_step(self, batch, i): self.log("val_loss", self.layer(batch).mean(), sync_dist=True)
            def configure_optimizers(self): return torch.optim.SGD(self.parameters(), .01)
        trainer = L.Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
                            default_root_dir=folder, callbacks=[getattr(callbacks, bar)()])
        loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=2)
        trainer.fit(Model(), loader, loader)
    for got in events(train, package, bar, str(tmp_path)).values():
        seen = last(got)
        assert ("epoch", 2, 2, 0) in bars(got)
        assert {b for b in seen if b[3] == 1} == {("train", 8, 8, 1)}      # 16 batches, 2 ranks
        assert {b[0] for b in seen} <= {"epoch", "train", "validation"}    # its own bar is not told
        assert {"loss_step", "loss_epoch", "val_loss"} <= set(numbers(got))
