package main

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var errMalformed = errors.New("malformed message")
var unescape = strings.NewReplacer(`\\`, `\`, `\n`, "\n")
var reserved = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// transaction reads the messages of one transaction. docs/standby.md has their form.
type transaction struct {
	channels  []string // those read so far
	nchannels int      // those that the transaction has
}

// read calls publish for each notification of one message. Any user can write a message
// with this prefix (pg_logical_emit_message), so nothing in it is trusted.
func (t *transaction) read(content []byte, publish func(channel, payload string) error) error {
	var version, pid, channels, notifications, size, before int
	line, rest, _ := bytes.Cut(content, []byte{'\n'})
	n, _ := fmt.Sscanf(string(line), "%d %d %d %d %d %d", &version, &pid, &channels, &notifications, &size, &before)
	if n != 6 || version != 1 {
		return fmt.Errorf("%w: first line %.40q", errMalformed, line)
	}
	if before == 0 {
		*t = transaction{nchannels: channels}
	}
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte{'\n'})
		if len(t.channels) < t.nchannels {
			if len(line) == 0 || len(line) > 2*63 { // a name has 63 bytes, escaped at most twice as many
				return fmt.Errorf("%w: channel %.40q", errMalformed, line)
			}
			t.channels = append(t.channels, unescape.Replace(string(line)))
			continue
		}
		number, payload, _ := bytes.Cut(line, []byte{'\t'})
		i, err := strconv.Atoi(string(number))
		if err != nil || i < 0 || i >= len(t.channels) || len(payload) > 2*8000 {
			return fmt.Errorf("%w: notification %.40q", errMalformed, line)
		}
		if err := publish(t.channels[i], unescape.Replace(string(payload))); err != nil {
			return err
		}
	}
	return nil
}

// token makes any name a token of a NATS subject. Each byte but ASCII letters, digits, "-"
// and "_" becomes "%" and two hexadecimal digits, as in a URL.
func token(name string) string {
	return reserved.ReplaceAllStringFunc(name, func(char string) (code string) {
		for _, b := range []byte(char) {
			code += fmt.Sprintf("%%%02X", b)
		}
		return code
	})
}
