"""The claims of chapter 03 about the record of the default run."""

from minitransformer.figures import training_text


def test_the_record_keeps_the_promises_of_the_chapter():
    record = training_text.data()
    bits = {row.name: row for row in record.bits}
    model, six = bits["transformer"], bits["6-gram"]
    assert model.all <= 2.0
    assert record.seconds <= 180
    assert model.all < bits["4-gram"].all
    assert six.all < model.all  # over everything the 6-gram is ahead ...
    assert model.new < six.new  # ... because of what it has seen before: on new passages it is behind
    assert six.copies < model.copies
    assert record.looks[-1, 1] < record.looks[0, 1]
    assert record.circumstances["machine"]
