import { globSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/**
 * Test files that share a process (`together.ts`), because the imports of each process take one to
 * two seconds of CPU.
 */
export interface Group {
  /** Glob patterns, relative to the project's folder. */
  readonly files: readonly string[];
  /** Files that need their own process, by their names. */
  readonly except: readonly string[];
}

/**
 * A file needs its own process if it has hooks for each test, which would run for the tests of all
 * files, if it changes the process, such as its environment or its timers, or if other tests would
 * distort what it measures.
 */
export const GROUPS = {
  activities: {
    files: ['test/activities/**/*.test.ts'],
    except: [
      // Computes for 10 s, which delays the calls and time-outs of other tests.
      'clinicians',
      'containment',
      // A query to a name server has only four seconds.
      'dns',
      'dns-control',
      'life',
      'lists',
      'rocketreach',
      'targets',
      'upload',
    ],
  },
  api: {
    files: ['test/api/{.,clients,console,docs,files}/*.test.ts'],
    except: [
      'body',
      'credits',
      'custom-data',
      'deliveries',
      'first-error',
      'idempotency',
      // Their files take seconds to read, which delays others, and have a time limit.
      'idle',
      'nasty',
      'uploads',
      'log',
      'overload',
      'prefer',
    ],
  },
  db: {
    files: ['test/db/*.test.ts'],
    except: ['doctor', 'errors', 'privacy', 'resends', 'retention', 'server'],
  },
  deploy: {
    files: ['test/deploy/*.test.ts', 'test/deploy/{local,nppes,temporal}/**/*.test.ts'],
    except: [
      'explain',
      'links',
      'operator-closing',
      'operator-reading',
      'operator-status',
      'operator-usage',
      'operator-viewer',
    ],
  },
  workflows: {
    files: ['test/workflows/*.test.ts'],
    except: ['decisions', 'outcomes', 'time', 'verifiers', 'webhooks'],
  },
} satisfies Record<string, Group>;

/** Returns the paths of a group's test files. */
export function filesOf({ files, except }: Group): string[] {
  const exceptions = except.map((name) => `/${name}.test.ts`);
  return globSync([...files], { cwd: ROOT })
    .filter((file) => !exceptions.some((ending) => file.endsWith(ending)))
    .sort();
}
