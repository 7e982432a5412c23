"""Deployment script from Paddle's documentation, with one import replaced.

python tests/paddle/deployment.py MODULE MODEL PARAMETERS INPUT.npy OUTPUT.npy
"""

import importlib
import sys

import numpy as np

paddle_infer = importlib.import_module(sys.argv[1])  # import paddle.inference as paddle_infer


def main():
    config = paddle_infer.Config(sys.argv[2], sys.argv[3])
    config.disable_gpu()
    config.switch_ir_optim(True)
    config.set_cpu_math_library_num_threads(2)
    config.disable_glog_info()
    config.delete_pass("conv_transpose_eltwiseadd_bn_fuse_pass")
    config.switch_use_feed_fetch_ops(False)
    predictor = paddle_infer.create_predictor(config)

    input_names = predictor.get_input_names()
    input_handle = predictor.get_input_handle(input_names[0])
    contents = np.load(sys.argv[4])
    input_handle.reshape(contents.shape)
    input_handle.copy_from_cpu(contents)

    predictor.run()

    output_names = predictor.get_output_names()
    output_handle = predictor.get_output_handle(output_names[0])
    output = output_handle.copy_to_cpu()
    assert tuple(output_handle.shape()) == output.shape
    np.save(sys.argv[5], output)
    print(input_names, output_names, output_handle.type().name, list(output.shape))


if __name__ == "__main__":
    main()
