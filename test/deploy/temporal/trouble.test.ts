import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { createServer } from 'node:tls';
import test, { type ExecutionContext } from 'ava';
import { generate } from 'selfsigned';
import { LOOPBACK } from '../../../deploy/local/processes.ts';
import { temporalTarget } from '../../../deploy/temporal/client.ts';
import { temporalTrouble } from '../../../deploy/temporal/trouble.ts';
import { openTestDatabase, testSetting } from '../../support/database.ts';
import { runProgram } from '../../support/programs.ts';
import { startRefusing } from '../../support/refusing.ts';

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
    'Temporal at 127.0.0.1:1 cannot be reached; check TEMPORAL_ADDRESS and that the cluster runs',
  );
  t.is(
    await trouble({ TEMPORAL_ADDRESS: 'nowhere.invalid:7233' }),
    'Temporal at nowhere.invalid:7233 has a name that no name server knows; check TEMPORAL_ADDRESS',
  );
  t.regex(
    (await trouble({ TEMPORAL_ADDRESS, TEMPORAL_TLS: 'true' })) ?? '',
    / does not speak TLS; unset TEMPORAL_TLS/,
  );
  t.regex(
    (await trouble({ TEMPORAL_ADDRESS: tls })) ?? '',
    / closes the connection; if it expects TLS, set TEMPORAL_TLS=true$/,
  );
  t.regex(
    (await trouble({ TEMPORAL_ADDRESS: tls, TEMPORAL_TLS: 'true' })) ?? '',
    / a certificate that is not trusted; check TEMPORAL_TLS_SERVER_CA_CERT_PATH/,
  );
  t.is(
    await trouble({ TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE: 'nobody' }),
    `Temporal at ${TEMPORAL_ADDRESS} has no namespace nobody; check TEMPORAL_NAMESPACE, or register it`,
  );
});

test('a wrong Temporal API key and missing rights are reported', async (t) => {
  const key = await startRefusing(t, 16);
  t.is(
    await trouble({ TEMPORAL_ADDRESS: key }),
    `Temporal at ${key} rejects the key; check TEMPORAL_API_KEY`,
  );
  const rights = await startRefusing(t, 7);
  t.regex(
    (await trouble({ TEMPORAL_ADDRESS: rights, TEMPORAL_NAMESPACE: 'ours' })) ?? '',
    / gives us no rights in the namespace ours; /,
  );
});

test('doctor reports that the Temporal namespace is missing, and what to check', async (t) => {
  await using database = await openTestDatabase();
  const env = {
    DATABASE_URL: database.url,
    TEMPORAL_ADDRESS: testSetting('TEST_TEMPORAL_ADDRESS'),
    TEMPORAL_NAMESPACE: 'nobody',
  };
  const sentence = `Temporal at ${env.TEMPORAL_ADDRESS} has no namespace nobody; check TEMPORAL_NAMESPACE, or register it`;
  const doctor = await runProgram('operator', ['doctor'], { env });
  t.is(doctor.code, 3);
  t.true(
    doctor.stdout.includes(`${sentence}; use --offline to leave out the workflows.`),
    doctor.stdout,
  );
});
