import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { launch, run } from '../../deploy/local/processes.ts';
import { freePort, LOOPBACK } from '../../deploy/ports.ts';
import { eventually } from './organization.ts';

/**
 * Runs a check of promtool.
 * @throws {Error} with its output, if it finds an error
 */
export async function check(promtool: string, ...args: readonly string[]): Promise<void> {
  const { code, output } = await run(promtool, args, {});
  if (code !== 0)
    throw new Error(`promtool ${args.join(' ')} ended with ${code}:\n${output}`);
}

/** The result of a range query: one line per series, in seconds and numbers. */
export interface Series {
  readonly metric: Readonly<Record<string, string>>;
  readonly values: readonly (readonly [at: number, value: string])[];
}

/** The alerts of Alertmanager, with their labels and annotations. */
export interface ReceivedAlert {
  readonly labels: Readonly<Record<string, string>>;
  readonly annotations: Readonly<Record<string, string>>;
}

/** Starts Alertmanager with a configuration file. @returns its address, and what it received */
export async function startAlertmanager(program: string, folder: string, config: string) {
  const address = `${LOOPBACK}:${await freePort()}`;
  const storage = join(folder, 'alertmanager');
  const args = [`--config.file=${config}`, `--storage.path=${storage}`];
  args.push(`--web.listen-address=${address}`, '--cluster.listen-address=');
  const server = launch({ name: 'Alertmanager', command: program, args });
  const ask = async <T>(path: string) => {
    const response = await fetch(`http://${address}/api/v2/${path}`);
    return (await response.json()) as T;
  };
  await eventually(async () => {
    if (server.ending() !== undefined)
      throw new Error(`Alertmanager ended: ${server.tail()}`);
    return await ask('status').catch(() => null);
  });
  return { address, alerts: () => ask<ReceivedAlert[]>('alerts'), stop: server.stop };
}

/** The servers and files that a Prometheus server uses. */
interface Monitored {
  /** `host:port`, by job name. */
  readonly targets: Readonly<Record<string, readonly string[]>>;
  /** A file of alerts. */
  readonly rules: string;
  /** `host:port` of Alertmanager. */
  readonly alertmanager: string;
  readonly runbooks: string;
}

/** Starts a Prometheus that scrapes every second. */
export async function startPrometheus(
  prometheus: string,
  folder: string,
  { targets, rules, alertmanager, runbooks }: Monitored,
) {
  const address = `${LOOPBACK}:${await freePort()}`;
  const config = join(folder, 'prometheus.json');
  const jobs = Object.entries(targets).map(([name, addresses]) => ({
    job_name: name,
    static_configs: [{ targets: addresses, labels: { environment: 'test' } }],
  }));
  // JSON is valid YAML.
  await writeFile(
    config,
    JSON.stringify({
      global: {
        scrape_interval: '1s',
        scrape_timeout: '1s',
        evaluation_interval: '1s',
        external_labels: { runbooks },
      },
      rule_files: [rules],
      alerting: {
        alertmanagers: [{ static_configs: [{ targets: [alertmanager] }] }],
      },
      scrape_configs: jobs,
    }),
  );
  const server = launch({
    name: 'Prometheus',
    command: prometheus,
    args: [
      ...[`--config.file=${config}`, `--storage.tsdb.path=${join(folder, 'series')}`],
      ...[`--web.listen-address=${address}`, '--log.level=warn'],
    ],
  });
  /**
   * Queries Prometheus.
   * @throws {Error} with its error message
   */
  const ask = async <T>(
    path: string,
    parameters: Record<string, string> = {},
  ): Promise<T> => {
    const response = await fetch(
      `http://${address}/api/v1/${path}?${new URLSearchParams(parameters)}`,
    );
    const { data, error } = (await response.json()) as { data: T; error?: string };
    if (error !== undefined) throw new Error(`${error}: ${parameters.query}`);
    return data;
  };
  await eventually(async () => {
    if (server.ending() !== undefined)
      throw new Error(`Prometheus ended: ${server.tail()}`);
    return await ask('status/buildinfo').catch(() => null);
  });
  return {
    ask,
    async range(
      query: string,
      from: Date,
      stepSeconds: number,
    ): Promise<readonly Series[]> {
      const [start, end] = [from, new Date()].map((at) => String(at.getTime() / 1000));
      const { result } = await ask<{ result: Series[] }>('query_range', {
        ...{ query, start: start ?? '', end: end ?? '', step: String(stepSeconds) },
      });
      return result;
    },
    stop: () => server.stop(),
  };
}
