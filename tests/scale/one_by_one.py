"""An engine whose answer depends on the weights and the request alone, and not on who asks at the same moment.

A batch of another size adds in another order. The last bits then differ, and a sampled token where two are as likely.
"""

from gagpo.agents.engines.transformers import TransformersEngine


class OneByOne(TransformersEngine):
    """Reads every prompt from its beginning, and samples each response alone."""

    def generate(self, requests, sampling):
        return [self._alone(request, sampling) for request in requests]

    def _alone(self, request, sampling):
        (response,) = super().generate([request], sampling)
        self.close()  # no cache: what is read anew and what was kept differ in the last bits
        return response
