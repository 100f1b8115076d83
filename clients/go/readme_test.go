package pinpoint

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestReadme compiles the program of the README, and runs it if there is a server.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(text), "```go\n")
	program, _, _ = strings.Cut(program, "```")
	folder := t.TempDir()
	source, binary := filepath.Join(folder, "main.go"), filepath.Join(folder, "program")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("go", "build", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	config, conn := database(t, "")
	command := exec.Command(binary)
	command.Env = append(os.Environ(), "DATABASE_URL="+fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s",
		config.Host, config.Port, config.User, config.Password, config.Database))
	output, _ := command.StdoutPipe()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(deadline, func() { _ = command.Process.Kill() })
	defer limit.Stop()
	lines := bufio.NewReader(output)
	for _, expected := range []string{"read the table orders now", "not connected: ", "read the table orders now"} {
		if line, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(line, expected) {
			t.Error(line, err)
		}
		execute(t, conn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"+
			" WHERE datname = current_database() AND pid <> pg_backend_pid()")
	}
	_ = command.Process.Signal(os.Interrupt)
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
}
