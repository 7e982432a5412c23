"""Test suites that take long: `nox -l` lists them, `nox -s NAME` runs one.

A session makes a virtual environment and installs the packages of its suite. With `nox --no-venv -s NAME` it uses the
current environment. Words after `--` are passed to pytest, as in `nox -s openvino_forms -- -k Resize`. Environment
variables set numbers of cases, seeds and devices:

    NNADAPTER_FUZZ_EXAMPLES                            random_models, strange_bytes, torch_programs, xla
    NNADAPTER_FUZZ_SEED, NNADAPTER_FUZZ_DEVICE         torch_programs
    NNADAPTER_SWEEP_FORMS, NNADAPTER_SWEEP_SEED        openvino_forms
    NNADAPTER_COMPOSITIONS, NNADAPTER_COMPOSITIONS_SEED    compositions
    NNADAPTER_OPERATOR_SAMPLES                         torch_operators
"""

import nox

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["plain"]

SWEEP, FUZZ, BOTH = ("-m", "sweep"), ("-m", "fuzz"), ("-m", "fuzz or sweep")


def run_pytest(session, *words, packages=("-e", ".[test]"), env=None):
    """Run pytest after installing packages, which are only installed in a session's own environment."""
    if session.virtualenv.is_sandboxed:
        session.install(*packages)
    session.run("python", "-m", "pytest", *words, *session.posargs, env=env)


@nox.session
def plain(session):
    """Plain pytest with the extra test."""
    run_pytest(session)


@nox.session(python=["3.11", "3.12", "3.13"])
def versions(session):
    """Plain pytest on each supported version of Python that is installed."""
    run_pytest(session)


@nox.session
def everything(session):
    """All tests but those of other sessions, with all their cases and the extra test-all."""
    run_pytest(session, "--slow", "--all-cases", "--folder-times", packages=("-e", ".[test-all]"))


@nox.session
def large_graphs(session):
    """Passes, reports and pages of graphs with thousands of nodes."""
    run_pytest(session, *SWEEP, "tests/ir", "tests/reports", "tests/browser", packages=("-e", ".[test-all]"))


@nox.session
def properties(session):
    """All tests by hypothesis with many more examples than in CI, and new ones in each run."""
    run_pytest(session, "-m", "hypothesis", packages=("-e", ".[test-all]"))


@nox.session
def random_models(session):
    """Random adapter IR models against the laws of fake_npu and the passes: after changes to kernels or shape rules."""
    run_pytest(session, *FUZZ, "tests/random_models")


@nox.session
def strange_bytes(session):
    """Damaged and forged models, rules, plans and adapter IR files: after changes to the code that reads them."""
    run_pytest(session, *FUZZ, "tests/test_random_bytes.py")


@nox.session
def compositions(session):
    """Random ONNX graphs on cpu, fake_npu and openvino against ONNX Runtime: after changes to passes or drivers."""
    run_pytest(session, *SWEEP, "tests/compositions", packages=("-e", ".[test,openvino]"))


@nox.session
def openvino_forms(session):
    """Forms of every op that openvino takes: after changes to the driver's tables, or with another OpenVINO."""
    run_pytest(session, *SWEEP, "tests/drivers/openvino/sweep", packages=("-e", ".[test,openvino]"))


@nox.session
def openvino(session):
    """All cases of the driver openvino, with all operator tests of onnx."""
    words = ("tests/drivers/openvino", "--ignore=tests/drivers/openvino/sweep")
    run_pytest(session, *SWEEP, *words, packages=("-e", ".[test,openvino]"))


@nox.session
def drivers(session):
    """All cases of the drivers fake_npu, native and qnn, crashes by each signal, and the command line."""
    others = ("xla", "openvino")
    words = ("tests/drivers", "tests/cli", *(f"--ignore=tests/drivers/{name}" for name in others))
    run_pytest(session, *SWEEP, *words, packages=("-e", ".[test-all]"))


@nox.session
def xla(session):
    """The whole conformance kit, whole networks and random models on xla:cpu."""
    run_pytest(session, *BOTH, "tests/drivers/xla", packages=("-e", ".[test,xla]"))


@nox.session(venv_backend="none")
def xla_gpu(session):
    """The tests of xla on an NVIDIA GPU: in the current environment, which has JAX with CUDA."""
    env = {"NNADAPTER_XLA_DEVICE": "xla:gpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    run_pytest(session, "tests/drivers/xla", env=env)


@nox.session
def new_driver(session):
    """The commands of docs/write-a-driver.md for C, and Paddle's plug-in with optimization."""
    run_pytest(session, *SWEEP, "tests/new_driver", packages=("-e", ".[test-all]"))


@nox.session
def feeds(session):
    """Bad indices, lengths and counts in feeds on five devices, and faults in networks."""
    run_pytest(session, *BOTH, "tests/inference", packages=("-e", ".[test-all]"))


@nox.session
def running(session):
    """More seeds and interrupts of running sessions, and every damaged byte of kept plans."""
    run_pytest(session, *BOTH, "tests/running", "tests/cached_plans", packages=("-e", ".[test-all]"))


@nox.session
def backend(session):
    """The whole backend test suite of onnx."""
    run_pytest(session, *SWEEP, "tests/backend", packages=("-e", ".[test-all]"))


@nox.session
def partitioning(session):
    """More seeds, devices and networks for the partitioner, plans, costs, what-if, memory and ONNX preparation."""
    folders = ("partition", "planning", "costs", "whatif", "memory", "onnx")
    run_pytest(session, *SWEEP, *(f"tests/{name}" for name in folders), packages=("-e", ".[test-all]"))


@nox.session
def converters(session):
    """More forms of operations through converters and exports, operations from outside, more seeds for accuracy."""
    words = (
        "tests/converters",
        "tests/exporting",
        "tests/accuracy",
        "tests/test_external_package.py",
        "tests/test_every.py",
    )
    run_pytest(session, *SWEEP, *words)


@nox.session
def networks(session):
    """All networks in onnx with random weights, models that ONNX Runtime optimized, pictures for RapidOCR, examples."""
    words = ("tests/test_networks.py", "tests/test_optimized_models.py", "tests/examples")
    run_pytest(session, *SWEEP, *words, packages=("-e", ".[test-all]"))


@nox.session
def compiled_models(session):
    """Compiled files damaged at every byte, forged messages, and killed compilations."""
    run_pytest(session, *BOTH, "tests/compiled_models", packages=("-e", ".[test,openvino]"))


@nox.session
def caching(session):
    """Killed writers of cache entries and files."""
    run_pytest(session, *BOTH, "tests/caching", "tests/files", packages=("-e", ".[test,openvino,qnn]"))


@nox.session
def faults(session):
    """Random faults, every fault in every phase, and models of many quantizers."""
    files = ("tests/test_chaos.py", "tests/test_fault_matrix.py", "tests/test_quantizer_models.py")
    run_pytest(session, *SWEEP, *files, packages=("-e", ".[test-all]"))


@nox.session
def benchmarks(session):
    """Each program in benchmarks/, as short as can be."""
    run_pytest(session, *SWEEP, "tests/test_benchmarks.py", packages=("-e", ".[test-all]"))


@nox.session
def torch(session):
    """More modules, forms and optimizers of PyTorch."""
    others = ("test_networks", "test_operator_database")
    words = ("tests/torch", "tests/torch_models", *(f"--ignore=tests/torch/{name}.py" for name in others))
    run_pytest(session, *SWEEP, *words, packages=("-e", ".[test-all]"))


@nox.session
def torch_programs(session):
    """Random functions through torch.compile against PyTorch: after changes to nnadapter/torch."""
    run_pytest(session, *FUZZ, "tests/torch", packages=("-e", ".[test,torch,openvino]"))


@nox.session
def torch_networks(session):
    """The networks of benchmarks/models/pytorch_models.py through torch.compile against PyTorch."""
    packages = ("-e", ".[test,torch,openvino]", "transformers")
    run_pytest(session, *SWEEP, "tests/torch/test_networks.py", packages=packages)


@nox.session
def torch_operators(session):
    """PyTorch's own database of operators through torch.compile against PyTorch."""
    packages = ("-e", ".[test,torch,openvino]", "expecttest")
    run_pytest(session, *SWEEP, "tests/torch/test_operator_database.py", "-n", "2", packages=packages)


@nox.session
def paddle(session):
    """Every network of benchmarks/models/paddle_networks.py against Paddle's predictor."""
    run_pytest(session, *SWEEP, "tests/paddle", packages=("-e", ".[test,paddle,openvino]"))


@nox.session
def ray(session):
    """Ray with three nodes, one of which is killed during a job."""
    run_pytest(session, *SWEEP, "tests/ray", "-n", "0", packages=("-e", ".[test-all]"))


@nox.session
def oldest(session):
    """Core tests with the oldest versions that pyproject.toml allows."""
    packages = ("-e", ".[latency,openvino]", "pytest", "pytest-xdist", "hypothesis", "-c", "tests/oldest.txt")
    run_pytest(session, "tests/partition", "tests/files", "tests/running", packages=packages)
