import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { createServer } from 'node:tls';
import test, { type ExecutionContext } from 'ava';
import { generate } from 'selfsigned';
import { submit } from '../../../db/requests/submit.ts';
import { LOOPBACK } from '../../../deploy/ports.ts';
import { temporalTarget } from '../../../deploy/temporal/client.ts';
import { temporalTrouble } from '../../../deploy/temporal/trouble.ts';
import { openTestDatabase, testSetting } from '../../support/database.ts';
import { openOrganization, RULES, submitCommand } from '../../support/organization.ts';
import { runProgram } from '../../support/programs.ts';
import { startGrpc, startRefusing, startSilent } from '../../support/refusing.ts';

// Tests that each wrong setting of Temporal causes an error that names the setting.

/** Starts a TLS server with an unsigned certificate. */
async function startTls(t: ExecutionContext): Promise<string> {
  const pems = await generate([{ name: 'commonName', value: 'localhost' }]);
  const server = createServer(
    { key: pems.private, cert: pems.cert, ALPNProtocols: ['h2'] },
    (socket) => socket.on('error', () => {}),
  );
  server.on('tlsClientError', () => {});
  server.listen(0, LOOPBACK);
  await once(server, 'listening');
  t.teardown(() => server.close());
  return `${LOOPBACK}:${(server.address() as AddressInfo).port}`;
}

const trouble = async (env: Readonly<Record<string, string>>) =>
  (await temporalTrouble(temporalTarget(env)))?.message ?? null;

test('correct Temporal settings cause no error', async (t) => {
  t.is(await trouble({ TEMPORAL_ADDRESS: testSetting('TEST_TEMPORAL_ADDRESS') }), null);
});

test('each wrong Temporal address, TLS setting, certificate, or namespace is reported', async (t) => {
  const TEMPORAL_ADDRESS = testSetting('TEST_TEMPORAL_ADDRESS');
  const tls = await startTls(t);
  t.is(
    await trouble({ TEMPORAL_ADDRESS: '127.0.0.1:1' }),
    'Temporal at 127.0.0.1:1 cannot be reached; check TEMPORAL_ADDRESS and that the cluster runs (gRPC 14 UNAVAILABLE: No connection established. Last error: Error: connect ECONNREFUSED 127.0.0.1:1.)',
  );
  t.is(
    await trouble({ TEMPORAL_ADDRESS: 'nowhere.invalid:7233' }),
    'Temporal at nowhere.invalid:7233 has a name that no name server knows; check TEMPORAL_ADDRESS (gRPC 14 UNAVAILABLE: Name resolution failed for target dns:nowhere.invalid:7233)',
  );
  t.regex(
    (await trouble({ TEMPORAL_ADDRESS, TEMPORAL_TLS: 'true' })) ?? '',
    / does not speak TLS; unset TEMPORAL_TLS/,
  );
  t.regex(
    (await trouble({ TEMPORAL_ADDRESS: tls })) ?? '',
    / closes the connection; if it expects TLS, set TEMPORAL_TLS=true \(gRPC 14 /,
  );
  t.regex(
    (await trouble({ TEMPORAL_ADDRESS: tls, TEMPORAL_TLS: 'true' })) ?? '',
    / a certificate that is not trusted; check TEMPORAL_TLS_SERVER_CA_CERT_PATH/,
  );
  t.is(
    await trouble({ TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE: 'nobody' }),
    `Temporal at ${TEMPORAL_ADDRESS} has no namespace nobody; check TEMPORAL_NAMESPACE, or register it (gRPC 5 NOT_FOUND: Namespace nobody is not found.)`,
  );
});

test('a wrong Temporal API key and missing rights are reported', async (t) => {
  const key = await startRefusing(t, 16);
  t.is(
    await trouble({ TEMPORAL_ADDRESS: key }),
    `Temporal at ${key} rejects the key; check TEMPORAL_API_KEY (gRPC 16 UNAUTHENTICATED: )`,
  );
  const rights = await startRefusing(t, 7);
  t.regex(
    (await trouble({ TEMPORAL_ADDRESS: rights, TEMPORAL_NAMESPACE: 'ours' })) ?? '',
    / gives us no rights in the namespace ours; /,
  );
});

test('any other failure of Temporal is reported with its code and details', async (t) => {
  const busy = await startRefusing(t, 8, 'namespace rate limit exceeded');
  t.is(
    await trouble({ TEMPORAL_ADDRESS: busy }),
    `Temporal at ${busy} responds with an error; see the server's log (gRPC 8 RESOURCE_EXHAUSTED: namespace rate limit exceeded)`,
  );
});

test('a repeated time-out of Temporal has the same message', async (t) => {
  const silent = await startSilent(t);
  const seen = new Set([
    await trouble({ TEMPORAL_ADDRESS: silent }),
    await trouble({ TEMPORAL_ADDRESS: silent }),
  ]);
  t.is(seen.size, 1);
  t.regex(
    [...seen].join(''),
    / does not respond within 3 s; .* \(gRPC 4 DEADLINE_EXCEEDED: Deadline exceeded,Waiting for LB pick\)$/,
  );
});

test('doctor reports that the Temporal namespace is missing, and what to check', async (t) => {
  await using database = await openTestDatabase();
  const env = {
    DATABASE_URL: database.url,
    TEMPORAL_ADDRESS: testSetting('TEST_TEMPORAL_ADDRESS'),
    TEMPORAL_NAMESPACE: 'nobody',
  };
  const sentence = `Temporal at ${env.TEMPORAL_ADDRESS} has no namespace nobody; check TEMPORAL_NAMESPACE, or register it (gRPC 5 NOT_FOUND: Namespace nobody is not found.)`;
  const doctor = await runProgram('operator', ['doctor'], { env });
  t.is(doctor.code, 3);
  t.true(
    doctor.stdout.includes(`${sentence}; use --offline to leave out the workflows.`),
    doctor.stdout,
  );
});

test('doctor ends in order if a call of Temporal fails while others are repeated', async (t) => {
  await using database = await openTestDatabase();
  const organization = await openOrganization(database.db, 10);
  const npis = ['2000000401', '2000000419', '2000000427'];
  for (const npi of npis) {
    await submit(database.db, submitCommand(organization, { npis: [npi] }), RULES);
  }
  await database.sql`update batches set started_at = now() - interval '2 minutes'`;
  let described = 0;
  const TEMPORAL_ADDRESS = await startGrpc(t, (method) => {
    if (method !== 'DescribeWorkflowExecution') return [0];
    described += 1;
    // The SDK repeats calls that fail with the code 14.
    return described === 1 ? [7, 'no reader'] : [14, 'frontend restarts'];
  });
  const env = { DATABASE_URL: database.url, TEMPORAL_ADDRESS };
  const { code, stdout, stderr } = await runProgram('operator', ['doctor'], { env });
  t.deepEqual([code, stderr], [3, '']);
  t.regex(
    stdout,
    /^temporal_unreachable: .*\n {2}Temporal failed a check: .* \(gRPC 7 PERMISSION_DENIED: no reader\);/m,
  );
  t.true(described > npis.length, 'a call was repeated');
});
