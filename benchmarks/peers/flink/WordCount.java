package peers;

import static org.apache.flink.table.api.DataTypes.BIGINT;
import static org.apache.flink.table.api.DataTypes.STRING;

import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.Encoder;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.HeartbeatManagerOptions;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.RpcOptions;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.reader.TextLineInputFormat;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.filesystem.bucketassigners.BasePathBucketAssigner;
import org.apache.flink.streaming.api.functions.sink.filesystem.rollingpolicies.OnCheckpointRollingPolicy;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

/**
 * Word count over the files that come into {@code FOLDER/input}, exactly once: changed totals show
 * as files of JSON lines in {@code FOLDER/output} when the checkpoint that holds them is complete.
 *
 * <p>{@code combined} is written by hand for speed, {@code sql} is Flink SQL with mini-batches and
 * aggregation in two phases. Prints {@code ready} when the job runs, and ends with standard input.
 *
 * <p>Arguments: plan, folder, milliseconds between checkpoints, milliseconds between looks for new
 * files, parallelism.
 */
public final class WordCount {
    private static final Duration STOPPED = Duration.ofHours(6);

    private WordCount() {}

    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 5) {
            throw new IllegalArgumentException("want: plan folder checkpointMs lookMs parallelism");
        }
        Path folder = Path.of(arguments[1]).toAbsolutePath();
        Duration checkpoint = Duration.ofMillis(Long.parseLong(arguments[2]));
        Duration look = Duration.ofMillis(Long.parseLong(arguments[3]));
        int parallelism = Integer.parseInt(arguments[4]);
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createLocalEnvironment(
                        parallelism, settings(folder, checkpoint, parallelism));
        switch (arguments[0]) {
            case "combined" -> combined(environment, folder, look);
            case "sql" -> sql(environment, folder, look, checkpoint);
            default -> throw new IllegalArgumentException("unknown plan " + arguments[0]);
        }
        JobClient job = environment.executeAsync(arguments[0]);
        while (job.getJobStatus().get() != JobStatus.RUNNING) {
            Thread.sleep(50);
        }
        System.out.println("ready");
        Thread watch = new Thread(() -> endWith(job), "watch");
        watch.setDaemon(true);
        watch.start();
        while (System.in.read() >= 0) {}
        Runtime.getRuntime().halt(0);
    }

    private static void endWith(JobClient job) {
        try {
            job.getJobExecutionResult().get();
        } catch (Exception failure) {
            failure.printStackTrace();
        }
        Runtime.getRuntime().halt(1);
    }

    private static Configuration settings(Path folder, Duration checkpoint, int parallelism) {
        Configuration settings = new Configuration();
        settings.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, checkpoint);
        settings.set(
                CheckpointingOptions.CHECKPOINTING_CONSISTENCY_MODE,
                CheckpointingMode.EXACTLY_ONCE);
        settings.set(
                CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
                ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        settings.set(CheckpointingOptions.CHECKPOINT_STORAGE, "filesystem");
        settings.set(
                CheckpointingOptions.CHECKPOINTS_DIRECTORY,
                folder.resolve("checkpoints").toUri().toString());
        settings.set(StateBackendOptions.STATE_BACKEND, "hashmap");
        settings.set(PipelineOptions.OBJECT_REUSE, true);
        settings.set(TaskManagerOptions.NUM_TASK_SLOTS, parallelism);
        // A job that fails ends the benchmark, which may also stop the process for some minutes.
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
        settings.set(HeartbeatManagerOptions.HEARTBEAT_TIMEOUT, STOPPED);
        settings.set(RpcOptions.ASK_TIMEOUT_DURATION, STOPPED);
        settings.set(CheckpointingOptions.CHECKPOINTING_TIMEOUT, STOPPED);
        return settings;
    }

    private static void combined(
            StreamExecutionEnvironment environment, Path folder, Duration look) {
        FileSource<String> files =
                FileSource.forRecordStreamFormat(
                                new TextLineInputFormat(), path(folder, "input"))
                        .monitorContinuously(look)
                        .build();
        TypeInformation<Tuple2<String, Long>> pairs =
                TypeInformation.of(new TypeHint<Tuple2<String, Long>>() {});
        environment
                .fromSource(files, WatermarkStrategy.noWatermarks(), "lines")
                .transform("combine", pairs, new Combine())
                .keyBy(pair -> pair.f0)
                .transform("totals", pairs, new Totals())
                .sinkTo(
                        sink(
                                folder,
                                (pair, out) -> JsonLine.write(pair.f0, pair.f1, out)));
    }

    private static void sql(
            StreamExecutionEnvironment environment,
            Path folder,
            Duration look,
            Duration checkpoint) {
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        tables.getConfig()
                .set("table.exec.mini-batch.enabled", "true")
                .set("table.exec.mini-batch.allow-latency", checkpoint.toMillis() + " ms")
                .set("table.exec.mini-batch.size", "2000000")
                .set("table.optimizer.agg-phase-strategy", "TWO_PHASE");
        tables.executeSql(
                String.format(
                        "CREATE TABLE lines (line STRING) WITH ('connector' = 'filesystem',"
                                + " 'path' = '%s', 'format' = 'raw',"
                                + " 'source.monitor-interval' = '%d ms')",
                        path(folder, "input"), look.toMillis()));
        Table totals =
                tables.sqlQuery(
                        "SELECT word, COUNT(*) AS n"
                                + " FROM lines CROSS JOIN UNNEST(SPLIT(line, ' ')) AS t (word)"
                                + " WHERE word IS NOT NULL GROUP BY word");
        Schema keyed =
                Schema.newBuilder()
                        .column("word", STRING().notNull())
                        .column("n", BIGINT().notNull())
                        .primaryKey("word")
                        .build();
        DataStream<Row> changes = tables.toChangelogStream(totals, keyed, ChangelogMode.upsert());
        changes.filter(row -> row.getKind() != RowKind.DELETE)
                .sinkTo(
                        sink(
                                folder,
                                (row, out) ->
                                        JsonLine.write(
                                                row.getFieldAs(0), row.<Long>getFieldAs(1), out)));
    }

    private static <T> FileSink<T> sink(Path folder, Encoder<T> encoder) {
        return FileSink.forRowFormat(path(folder, "output"), encoder)
                .withBucketAssigner(new BasePathBucketAssigner<>())
                .withRollingPolicy(OnCheckpointRollingPolicy.build())
                .build();
    }

    private static org.apache.flink.core.fs.Path path(Path folder, String name) {
        return new org.apache.flink.core.fs.Path(folder.resolve(name).toUri());
    }
}
