"""Reading what the pipeline has computed: figures of messages, groups, who sends to whom, usage. It needs no Spark."""
