"A rank fails while others wait for it: the cause is told, the others are freed, and the next cell's collectives work."
import re, socket, time

import pytest

import dtnb
from dtnb.session import Session
from test_session import own_home

N = 3


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    with own_home(tmp_path_factory): s = Session(N)
    yield s
    s.close()


@pytest.fixture
def s(kept):
    try: kept.run("1", timeout=10)
    except dtnb.DtnbError: kept.restart()
    return kept


def works(s, timeout=30):
    "Collectives of the world work, and variables are there"
    assert s.run("one = torch.ones(1)\ndist.all_reduce(one)\n(one.item(), kept)", timeout=timeout).result() == {r: (float(N), r) for r in range(N)}


KINDS = dict(
    barrier="dist.barrier()",
    all_reduce="dist.all_reduce(torch.ones(10))",
    all_gather="dist.all_gather([torch.zeros(1) for _ in range(world_size)], torch.ones(1))",
    recv="dist.recv(torch.zeros(1), src=1)",
    subgroup="dist.all_reduce(torch.ones(1), group=sub)",
    mesh="dist.all_reduce(torch.ones(1), group=mesh.get_group())",
    ddp="model(torch.ones(2, 4)).sum().backward()",
    fsdp="sharded(torch.ones(2, 4)).sum().backward()",
    store="dist.distributed_c10d._get_default_store().get('never there')",
    functional="import torch.distributed._functional_collectives as fc\nfc.all_reduce(torch.ones(4), 'sum', dist.group.WORLD).wait()",
)
SETUP = dict(
    subgroup="sub = dist.new_group(list(range(world_size)))",
    mesh="from torch.distributed.device_mesh import init_device_mesh\nmesh = init_device_mesh('cpu', (world_size,))",
    ddp="model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))",
    fsdp="from torch.distributed.fsdp import fully_shard\nsharded = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))\nfully_shard(sharded)",
)


@pytest.mark.parametrize("kind", KINDS)
def test_one_raises_while_others_wait(s, kind):
    s.run(f"kept = rank\n{SETUP.get(kind, '')}", timeout=60)
    began = time.monotonic()
    cell = s.send(f"if rank == 1: raise ValueError('a bad batch')\n{KINDS[kind]}")
    cell.wait(30)
    error = cell.exception()
    assert (error.rank, error.message) == (1, "ValueError: a bad batch (line 1 of the cell)"), str(error)
    assert time.monotonic() - began < 15 and not cell.stuck
    told = re.sub(r"(rank \d): lost a peer", r"\1: waited in", str(error))   # it may have come to the collective only when the other was being freed from it
    assert told.count("waited in") == 1 + ("ranks 0, 2" not in told) and "the ranks have a new process group, their variables are kept" in told, str(error)
    if kind == "ddp": assert "model (DistributedDataParallel) still holds the old one: wrap it again" in str(error)
    works(s)


def test_ten_faults_in_a_row(s):
    s.run("kept = rank", timeout=30)
    for i in range(10):
        with pytest.raises(dtnb.CellFailedError, match=f"rank {i % N} "): s.run(f"if rank == {i % N}: raise KeyError({i})\ndist.all_reduce(torch.ones(1))", timeout=30)
        works(s)


def test_ddp_is_wrapped_again(s):
    s.run("kept = rank\nimport torch.nn.parallel as par\nmodel = par.DistributedDataParallel(torch.nn.Linear(2, 1))\nopt = torch.optim.SGD(model.parameters(), lr=.1)", timeout=60)
    step = "opt.zero_grad()\nmodel(torch.ones(4, 2) * (rank + 1)).sum().backward()\nopt.step()\nsum(p.sum().item() for p in model.parameters())"
    before = s.run(step, timeout=60).result()
    with pytest.raises(dtnb.CellFailedError): s.run("if rank == 2: raise ValueError\n" + step, timeout=30)
    s.run("model = par.DistributedDataParallel(model.module)", timeout=60)
    after = s.run(step, timeout=60).result()
    assert len(set(after.values())) == 1 and after != before


def test_a_plain_error_leaves_the_group_as_it_is(s):
    s.run("kept = rank\nbefore = dist.group.WORLD", timeout=30)
    with pytest.raises(dtnb.CellFailedError) as failed: s.run("1 / 0", timeout=30)
    assert "new process group" not in str(failed.value)
    assert s.run("dist.group.WORLD is before", timeout=30).result() == {r: True for r in range(N)}


def test_counts_that_differ_are_mended(s):
    "A rank that failed before an asynchronous collective has begun one less than the others"
    s.run("kept = rank", timeout=30)
    with pytest.raises(dtnb.CellFailedError, match="new process group"): s.run("if rank == 0: raise ValueError\nwork = dist.all_reduce(torch.ones(1), async_op=True)", timeout=30)
    works(s)


def test_interrupt_frees_ranks_that_wait_for_each_other(s):
    "Nobody has failed: both wait"
    s.run("kept = rank", timeout=30)
    cell = s.send("dist.recv(torch.zeros(1), src=(rank + 1) % world_size)")
    time.sleep(1)
    began = time.monotonic()
    cell.cancel()
    assert time.monotonic() - began < 8 and not cell.stuck and cell.state == "failed"
    works(s)


def test_connections_of_the_user_are_left_alone(s):
    "To the kernel, and between two ranks"
    server = socket.create_server(("127.0.0.1", 0))
    s.run(f"kept = rank\nimport socket\nmine = socket.create_connection(('127.0.0.1', {server.getsockname()[1]}))\n"
          "if rank == 0: inner = socket.create_server(('127.0.0.1', 0))\n"
          "port = torch.tensor([inner.getsockname()[1] if rank == 0 else 0])\ndist.broadcast(port, 0)\n"
          "if rank == 1: peer = socket.create_connection(('127.0.0.1', port.item()))\nif rank == 0: peer = inner.accept()[0]", timeout=30)
    ends = [server.accept()[0] for _ in range(N)]
    with pytest.raises(dtnb.CellFailedError, match="new process group"): s.run("if rank == 2: raise ValueError\ndist.barrier()", timeout=30)
    for e in ends: e.sendall(b"x")
    assert s.run("mine.recv(1)", timeout=30).result() == {r: b"x" for r in range(N)}
    s.run("if rank == 0: peer.sendall(b'y')", timeout=30)
    assert s[1].run("peer.recv(1)", timeout=30).result() == {1: b"y"}
    for e in (*ends, server): e.close()


def test_a_long_computation_is_not_disturbed(s):
    "It ends when it ends; only then the cell is over"
    s.run("kept = rank\nimport time", timeout=30)
    cell = s.send("if rank == 1: raise ValueError('early')\nend = time.monotonic() + 4\nwhile time.monotonic() < end: pass\nprint('computed')")
    assert cell.wait(30) == "failed" and cell.text(0) == "computed\n" and cell.exception().rank == 1
    works(s)


@pytest.mark.parametrize("how", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_dead_rank_alone_is_started_anew(s, how):
    "The others keep their variables, and all have a new process group"
    s.run("kept = rank\nimport os", timeout=30)
    with pytest.raises(dtnb.CellFailedError): s.run(f"if rank == 1: {how}\ndist.barrier()", timeout=30)
    with pytest.raises(dtnb.DtnbError, match="%dist restart --ranks 1 only these"): s.run("1")
    s.restart([1])
    assert s.run("globals().get('kept')", timeout=30).result() == {0: 0, 1: None, 2: 2}
    s.run("kept = rank", timeout=30)
    works(s)
    s.restart([0, 2])                                       # ranks that are well can be replaced, too
    s.run("kept = rank", timeout=30)
    works(s)
