package peers;

import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;

/**
 * Keeps the total of every word. What combiners send ahead of one barrier is summed up first, so
 * that a changed total is looked up, stored and put out once for each checkpoint.
 */
final class Totals extends AbstractStreamOperator<Tuple2<String, Long>>
        implements OneInputStreamOperator<Tuple2<String, Long>, Tuple2<String, Long>> {
    private static final long serialVersionUID = 1L;

    private transient ValueState<Long> total;
    private transient Map<String, long[]> changed;
    private transient Tuple2<String, Long> pair;
    private transient StreamRecord<Tuple2<String, Long>> record;

    @Override
    public void open() throws Exception {
        super.open();
        total = getRuntimeContext().getState(new ValueStateDescriptor<>("total", Long.class));
        changed = new HashMap<>();
        pair = new Tuple2<>();
        record = new StreamRecord<>(pair);
    }

    /** The key of state is set word by word in {@link #put}, not here. */
    @Override
    @SuppressWarnings("rawtypes")
    public void setKeyContextElement1(StreamRecord element) {}

    @Override
    public void processElement(StreamRecord<Tuple2<String, Long>> element) {
        Tuple2<String, Long> part = element.getValue();
        long[] sum = changed.get(part.f0);
        if (sum == null) {
            changed.put(part.f0, new long[] {part.f1});
        } else {
            sum[0] += part.f1;
        }
    }

    @Override
    public void prepareSnapshotPreBarrier(long checkpointId) throws Exception {
        put();
    }

    @Override
    public void finish() throws Exception {
        put();
    }

    private void put() throws Exception {
        for (Map.Entry<String, long[]> entry : changed.entrySet()) {
            setCurrentKey(entry.getKey());
            Long before = total.value();
            long after = entry.getValue()[0] + (before == null ? 0 : before);
            total.update(after);
            pair.f0 = entry.getKey();
            pair.f1 = after;
            output.collect(record);
        }
        changed.clear();
    }
}
