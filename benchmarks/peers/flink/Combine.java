package peers;

import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;

/**
 * Counts words before they are exchanged and hands the counts on ahead of each checkpoint's
 * barrier, so that it holds nothing that a checkpoint would have to keep.
 */
final class Combine extends AbstractStreamOperator<Tuple2<String, Long>>
        implements OneInputStreamOperator<String, Tuple2<String, Long>> {
    private static final long serialVersionUID = 1L;

    private transient WordTable table;
    private transient Tuple2<String, Long> pair;
    private transient StreamRecord<Tuple2<String, Long>> record;

    @Override
    public void open() throws Exception {
        super.open();
        table = new WordTable();
        pair = new Tuple2<>();
        record = new StreamRecord<>(pair);
    }

    @Override
    public void processElement(StreamRecord<String> line) {
        table.addLine(line.getValue());
        if (table.isFull()) {
            drain();
        }
    }

    @Override
    public void prepareSnapshotPreBarrier(long checkpointId) {
        drain();
    }

    @Override
    public void finish() {
        drain();
    }

    private void drain() {
        table.drain(
                (word, count) -> {
                    pair.f0 = word;
                    pair.f1 = count;
                    output.collect(record);
                });
    }
}
