package peers;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;

/** Writes one total as a line of JSON, with {@code word} and {@code n}. */
final class JsonLine {
    private static final byte[] BEFORE = "{\"word\":\"".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] BETWEEN = "\",\"n\":".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] AFTER = "}\n".getBytes(StandardCharsets.US_ASCII);

    private JsonLine() {}

    static void write(String word, long n, OutputStream out) throws IOException {
        out.write(BEFORE);
        out.write(escaped(word).getBytes(StandardCharsets.UTF_8));
        out.write(BETWEEN);
        out.write(Long.toString(n).getBytes(StandardCharsets.US_ASCII));
        out.write(AFTER);
    }

    private static String escaped(String word) {
        int at = 0;
        while (at < word.length() && !isSpecial(word.charAt(at))) {
            at++;
        }
        if (at == word.length()) {
            return word;
        }
        StringBuilder built = new StringBuilder(word.length() + 8);
        for (int index = 0; index < word.length(); index++) {
            char c = word.charAt(index);
            if (c < ' ') {
                built.append(String.format("\\u%04x", (int) c));
            } else {
                built.append(isSpecial(c) ? "\\" : "").append(c);
            }
        }
        return built.toString();
    }

    private static boolean isSpecial(char c) {
        return c == '"' || c == '\\' || c < ' ';
    }
}
