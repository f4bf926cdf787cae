import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { freePort, LOOPBACK, launch, run } from '../../deploy/local/processes.ts';
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

/**
 * Starts a Prometheus that scrapes every second.
 * @param targets `host:port`, by job name
 * @param rules a file of alerts
 */
export async function startPrometheus(
  prometheus: string,
  folder: string,
  targets: Readonly<Record<string, readonly string[]>>,
  rules: string,
) {
  const address = `${LOOPBACK}:${await freePort()}`;
  const config = join(folder, 'prometheus.json');
  const jobs = Object.entries(targets).map(([name, addresses]) => ({
    job_name: name,
    static_configs: [{ targets: addresses }],
  }));
  // JSON is valid YAML.
  await writeFile(
    config,
    JSON.stringify({
      global: { scrape_interval: '1s', scrape_timeout: '1s', evaluation_interval: '1s' },
      rule_files: [rules],
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
