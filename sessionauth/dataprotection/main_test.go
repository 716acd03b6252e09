package dataprotection

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// gatewayEnv makes this test binary play one gateway, see gateway_test.go.
const gatewayEnv = "GATEHOUSE_TEST_KEY_RING"

func TestMain(m *testing.M) {
	if path := os.Getenv(gatewayEnv); path != "" {
		if err := playGateway(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
